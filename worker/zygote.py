"""The clean process that forks nannies: worker code already imported, no secret, ever, and one thread.

Started before any setting is read, with a clean environment and one inherited socket (SEQPACKET: one packet, one
order). In come Preload and Spawn with two descriptors, out go Spawned with a pidfd, SpawnFailed and Reaped. It keeps no
zmq.Context, no event loop and no connection: a fork would inherit them. The end of its socket ends it; the nannies it
has forked go on, tied to the supervisor by their life sockets.
"""

import asyncio
import contextlib
import encodings.ascii  # noqa: F401 - every fork would import it for /proc
import gc
import os
import resource
import select
import signal
import socket
import sys
import time
from dataclasses import dataclass
from typing import Any

import multiprocess
import multiprocess.popen_fork  # at the first start otherwise, that is, in memory that is not frozen

from protocol.codec import encode, frame
from protocol.content import Access, Prompt
from protocol.ids import TurnId
from protocol.spec import FromZygote, Preload, Reaped, Spawn, Spawned, SpawnFailed, to_zygote
from protocol.to_worker import AgentSpec, Grant, Leave, RunTurn
from worker import entry, hosts, nanny, turn
from worker.link import Link
from worker.sandbox import linux
from worker.sandbox.facts import facts

PACKET_BYTES = 64 * 1024
ORPHANS_S = 1.0  # most time for what a killed nanny left behind
BLIND_POLL_MS = 100  # where no pidfd tells that a nanny has ended
REHEARSALS = 8  # CPython 3.11 rewrites a function's code while it gets warm; more change nothing


def main(serve: entry.Serve = turn.serve) -> None:
    """argv: the socket's descriptor, the supervisor's pid."""
    control = socket.socket(fileno=int(sys.argv[1]))
    with contextlib.suppress(OSError):
        linux.die_with_parent()
        linux.set_dumpable(0)
        linux.become_subreaper()  # of the tree of a nanny that is killed itself
    # No core file of a nanny, forked from here, which will hold a key; nor of anything else, dumpable or not.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if os.getppid() != int(sys.argv[2]):
        os._exit(1)  # the supervisor died before the death signal was set
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, multiprocess would leak two descriptors a child
    facts()
    for _ in range(REHEARSALS):
        _rehearse()
    gc.collect()
    gc.freeze()
    _Zygote(control, serve).run()
    os._exit(0)  # a return would join the nannies first


def _rehearse() -> None:
    """One echo turn over a socketpair of its own, and a fork, so that the pages of what every worker runs are warm.

    They are shared as long as nobody writes to them: 0.4 MiB less in each worker (DECISIONS.md). Its loop is closed.
    """
    hosts.preload("echo")
    ours, theirs = socket.socketpair()
    with ours, theirs:
        grant = Grant(
            session_dir="/nowhere",
            workspace="/nowhere",
            media_dir="/nowhere",
            session_id=None,
            access=Access.CHAT,
            agent=AgentSpec("echo"),
            contract="",
            tools=None,
            stop_grace_s=1.0,
        )
        for message in (grant, RunTurn(TurnId("1"), Prompt("hello")), Leave()):
            ours.sendall(frame(encode(message)))
        link = Link(theirs)
        granted = link.wait_for_grant()
        assert granted is not None
        asyncio.run(entry.work(link, granted, turn.serve))
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


@dataclass(slots=True)
class _Child:
    process: Any
    pidfd: int  # -1: the platform has none


class _Zygote:
    def __init__(self, control: socket.socket, serve: entry.Serve) -> None:
        self._control = control
        self._serve = serve
        self._children: dict[int, _Child] = {}
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)

    def run(self) -> None:
        """Until the supervisor closes its end."""
        while True:
            blind = any(child.pidfd < 0 for child in self._children.values())
            ready = {descriptor for descriptor, _ in self._poll.poll(BLIND_POLL_MS if blind else None)}
            try:
                for pid, child in list(self._children.items()):
                    if child.pidfd in ready or (child.pidfd < 0 and child.process.exitcode is not None):
                        self._reap(pid)
                if self._control.fileno() in ready and not self._obey():
                    return
            except ConnectionError:
                return

    def _obey(self) -> bool:
        """One order. False: there will be no more."""
        packet, descriptors, _, _ = socket.recv_fds(self._control, PACKET_BYTES, 2)
        if not packet:
            return False
        match to_zygote.decode(packet):
            case Preload(host=host):
                # A host that cannot be imported is found out, and reported, by the worker that needs it.
                with contextlib.suppress(KeyError, ImportError):
                    hosts.preload(host)
                gc.collect()
                gc.freeze()
            case Spawn():
                self._spawn(descriptors)
        return True

    def _spawn(self, descriptors: list[int]) -> None:
        life, spec = descriptors
        gc.freeze()  # what came since the last one; the fork's collector would write to it
        process = multiprocess.get_context("fork").Process(target=nanny.main, args=(life, spec, self._serve))
        try:
            process.start()
        except OSError as error:
            self._say(SpawnFailed(error.strerror or str(error)))
            return
        finally:
            os.close(life)
            os.close(spec)
        try:
            pidfd = linux.pidfd_open(process.pid)
        except OSError:
            pidfd = -1
        self._children[process.pid] = _Child(process, pidfd)
        if pidfd >= 0:
            self._poll.register(pidfd, select.POLLIN)
        self._say(Spawned(process.pid), pidfd)

    def _reap(self, pid: int) -> None:
        child = self._children.pop(pid)
        if child.pidfd >= 0:
            self._poll.unregister(child.pidfd)
            os.close(child.pidfd)
        child.process.join()
        code = child.process.exitcode
        child.process.close()
        self._kill_orphans()
        self._say(Reaped(pid, code))

    def _kill_orphans(self) -> None:
        """A nanny that was killed left its tree to us. Ours are the nannies alone; whatever else is below us goes."""
        until = time.monotonic() + ORPHANS_S
        while time.monotonic() < until:
            orphans = [pid for pid in linux.children(os.getpid()) if pid not in self._children]
            if not orphans:
                return
            for orphan in orphans:
                for pid in (*linux.descendants(orphan), orphan):
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.kill(pid, signal.SIGKILL)
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(orphan, os.WNOHANG)
            time.sleep(0.001)

    def _say(self, message: FromZygote, pidfd: int = -1) -> None:
        socket.send_fds(self._control, [encode(message)], [pidfd] if pidfd >= 0 else [])
