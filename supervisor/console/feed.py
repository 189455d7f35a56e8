"""Keeps the control screen fed: threads of its own talk to the supervisor, so that the screen never waits for it.

One thread follows the events; each batch, and every second besides, makes another ask for the status. Orders run in
threads of their own. What comes is handed to callbacks, on those threads: the screen brings it to its own.
"""

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from protocol.ctl import (
    CodeWanted,
    CtlReply,
    CtlRequest,
    EventBatch,
    EventRow,
    Events,
    Failed,
    Status,
    StatusReply,
    VerifyCode,
)
from protocol.errors import BridgeError
from supervisor.console.client import Client

ASK_S = 1.0  # between two looks where nothing happens
GATHER_S = 0.1  # after an event: more will follow
AGAIN_S = 1.0


class Listener(Protocol):
    """Called from the feed's threads."""

    def on_status(self, status: StatusReply) -> None: ...

    def on_events(self, events: Sequence[EventRow]) -> None: ...

    def on_trouble(self, line: str) -> None:
        """No supervisor, or no answer; the feed goes on trying."""
        ...


class Feed:
    """start() once; stop() lets the threads end by themselves, which nobody waits for."""

    def __init__(self, home: Path, listener: Listener) -> None:
        self._home = home
        self._listener = listener
        self._over = threading.Event()
        self._happened = threading.Event()

    def start(self) -> None:
        for work in (self._follow, self._look):
            threading.Thread(target=work, daemon=True, name=work.__name__).start()

    def stop(self) -> None:
        self._over.set()
        self._happened.set()

    def refresh(self) -> None:
        """Ask for the status now."""
        self._happened.set()

    def order(self, request: CtlRequest, done: Callable[[CtlReply], None]) -> None:
        """One verb; done gets its last reply, a Failed of ours where the supervisor cannot be reached."""
        threading.Thread(target=self._order, args=(request, done), daemon=True, name="order").start()

    def _order(self, request: CtlRequest, done: Callable[[CtlReply], None]) -> None:
        done(_last_reply(self._home, request))
        self._happened.set()

    def _follow(self) -> None:
        seq: int | None = None
        while not self._over.is_set():
            try:
                with Client(self._home) as client:
                    for reply in client.ask(Events(since=seq, follow=True)):
                        if self._over.is_set():
                            return
                        if isinstance(reply, EventBatch):
                            seq = reply.events[-1].seq if reply.events else seq
                            self._listener.on_events(reply.events)
                            self._happened.set()
            except (BridgeError, OSError):
                pass  # _look says it
            self._over.wait(AGAIN_S)

    def _look(self) -> None:
        while not self._over.is_set():
            self._happened.clear()
            try:
                with Client(self._home) as client:
                    for reply in client.ask(Status()):
                        if isinstance(reply, StatusReply):
                            self._listener.on_status(reply)
            except (BridgeError, OSError) as error:
                self._listener.on_trouble(str(error))
            if self._happened.wait(ASK_S):
                time.sleep(GATHER_S)


class Login:
    """A login in a thread of its own. say() hands on the number that WeChat shows; give_up() ends it."""

    def __init__(self, home: Path, request: CtlRequest, heard: Callable[[CtlReply], object]) -> None:
        self._home = home
        self._request = request
        self._heard = heard
        self._over = threading.Event()
        self._code: str | None = None
        self._typed = threading.Event()
        threading.Thread(target=self._run, daemon=True, name="login").start()

    def say(self, code: str) -> None:
        self._code = code
        self._typed.set()

    def give_up(self) -> None:
        self._over.set()
        self._typed.set()

    def _run(self) -> None:
        try:
            with Client(self._home, given_up=self._over.is_set) as client:
                for reply in client.ask(self._request):
                    self._heard(reply)
                    if isinstance(reply, CodeWanted):
                        self._typed.wait()
                        self._typed.clear()
                        if self._over.is_set():
                            return
                        client.say(VerifyCode(self._code or ""))
        except (BridgeError, OSError) as error:
            if not self._over.is_set():
                self._heard(Failed(1, str(error)))


def _last_reply(home: Path, request: CtlRequest) -> CtlReply:
    try:
        with Client(home) as client:
            *_, last = client.ask(request)
    except (BridgeError, OSError) as error:
        return Failed(1, str(error))
    return last
