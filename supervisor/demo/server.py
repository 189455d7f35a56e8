"""Runs the simulated WeChat on loopback: in a thread of this process, or as a child that prints one JSON line.

    python -m supervisor.demo.server --port 0 --with-stdin

prints {"url": ..., "cdn_url": ..., "pid": ...} once it listens. Neither form knows the bridge: it is reached over HTTP
alone.
"""

import argparse
import asyncio
import json
import os
import random
import socket
import sys
import threading
from types import TracebackType
from typing import Self

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from supervisor.demo import model
from supervisor.demo.control import Control
from supervisor.demo.ilink import Api, Service
from supervisor.demo.names import Mint
from supervisor.demo.state import Settings, World

HOST = "127.0.0.1"
_LOOPBACK_NAMES = frozenset({"127.0.0.1", "localhost"})
_START_S = 20.0


class _Wire(H11Protocol):
    """HTTP/1.1 that lets the app break its own connection, for the faults that need it."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.app_state = {**self.app_state, "transport": transport}


class _Uvicorn(uvicorn.Server):
    """Says when it listens; its creator handles signals."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()


class LoopbackOnly:
    """Turns away what a foreign web page could send: another Host name (DNS rebinding) or another Origin."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            host = headers.get("host", "")
            origin = headers.get("origin")
            if host.partition(":")[0] not in _LOOPBACK_NAMES or origin not in (None, f"http://{host}"):
                await Response("loopback only", 403)(scope, receive, send)
                return
        await self.app(scope, receive, send)


class SimulatedServer:
    """The service on a port of its own. `start` and `stop` may alternate: the world outlives a stop, as a real one does."""

    def __init__(self, *, port: int = 0, settings: Settings | None = None) -> None:
        self._socket = _listening_socket(port)
        self.port: int = self._socket.getsockname()[1]
        self.url = f"http://{HOST}:{self.port}"
        self.cdn_url = f"{self.url}/c2c"
        world = World(Mint(random.SystemRandom()), settings or Settings(), base_url=self.url, cdn_url=self.cdn_url)
        service = Service(world)
        app = Starlette(routes=[*Api(service).routes(), *Control(service).routes(), *model.routes()])
        self._app = LoopbackOnly(app)
        self._server: _Uvicorn | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Returns once it listens. raises TimeoutError"""
        self._server = self._new_server()
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._socket]}, name="simulated WeChat", daemon=True
        )
        self._thread.start()
        if not self._server.listening.wait(_START_S):
            raise TimeoutError("the simulated WeChat did not start")

    def stop(self) -> None:
        """Breaks off held polls; returns once the port is closed."""
        if self._server is None or self._thread is None:
            return
        self._server.should_exit = True
        self._server.force_exit = True
        self._thread.join(_START_S)
        self._server = self._thread = None

    def restart(self) -> None:
        """Listens on the same port again after a stop."""
        self._socket = _listening_socket(self.port)
        self.start()

    async def serve(self, *, until_stdin_closes: bool) -> None:
        """In the foreground, until SIGTERM or SIGINT, or (when asked) until whoever holds our stdin is gone."""
        server = self._new_server()
        async with asyncio.TaskGroup() as group:
            running = group.create_task(server.serve(sockets=[self._socket]), name="uvicorn")
            await asyncio.to_thread(server.listening.wait)
            print(json.dumps({"url": self.url, "cdn_url": self.cdn_url, "pid": os.getpid()}), flush=True)
            if until_stdin_closes:
                asyncio.get_running_loop().add_reader(sys.stdin.fileno(), _leave_at_end_of_stdin, server)
            await running

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _new_server(self) -> _Uvicorn:
        # access_log and log_level: broken connections are our trade, not news.
        return _Uvicorn(
            uvicorn.Config(
                self._app,
                http=_Wire,
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="critical",
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=0,
                timeout_keep_alive=60,
            )
        )


def _listening_socket(port: int) -> socket.socket:
    # The protocol is named because asyncio sets TCP_NODELAY only then; without it every answer is 40 ms late.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((HOST, port))
    listener.listen(1024)
    return listener


def _leave_at_end_of_stdin(server: uvicorn.Server) -> None:
    if not os.read(sys.stdin.fileno(), 4096):
        server.should_exit = True
        server.force_exit = True


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m supervisor.demo.server", description="A WeChat that is not one.")
    parser.add_argument("--port", type=int, default=0, help="0: a free one")
    parser.add_argument("--hold-s", type=float, default=Settings().hold_s, help="how long an idle poll is held")
    parser.add_argument("--with-stdin", action="store_true", help="end when stdin does")
    options = parser.parse_args()
    server = SimulatedServer(port=options.port, settings=Settings(hold_s=options.hold_s))
    asyncio.run(server.serve(until_stdin_closes=options.with_stdin))


if __name__ == "__main__":
    main()
