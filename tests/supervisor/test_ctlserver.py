"""The control socket with real sockets on both ends: the client runs in a thread, as it would in another process."""

import asyncio
import contextlib
import fcntl
import os
import socket
import stat
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import zmq

from protocol.codec import encode
from protocol.content import Role
from protocol.ctl import (
    Accounts,
    AccountsReply,
    CodeWanted,
    CtlReply,
    CtlRequest,
    Done,
    Failed,
    Login,
    Progress,
    QrShown,
    Reload,
    Shutdown,
    Status,
    Stop,
    VerifyCode,
    ctl_reply,
)
from protocol.errors import BridgeError
from supervisor.console.client import Client, NotAdmitted
from supervisor.ctlserver import CONVERSATIONS, Conversation, CtlServer, CtlSocketError, Handler
from supervisor.home import Home


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    """A home whose lock somebody holds."""
    home = Home(tmp_path / "b")
    home.make()
    with open(home.lock, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield home


@contextlib.asynccontextmanager
async def serving(home: Home, handler: Handler) -> AsyncIterator[CtlServer]:
    server = CtlServer(home)
    task = asyncio.create_task(server.serve(handler, keepalive_s=0.05), name="serve")
    try:
        yield server
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        server.close()


async def ask(home: Home, request: CtlRequest, *, silence_s: float = 20.0) -> list[CtlReply]:
    def call() -> list[CtlReply]:
        with Client(home.path, silence_s=silence_s) as client:
            return list(client.ask(request))

    return await asyncio.to_thread(call)


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await test()

    asyncio.run(bounded())


async def echo(request: CtlRequest, conversation: Conversation) -> None:
    conversation.reply(Done(lines=[type(request).__name__]))


def test_a_request_is_handled_and_its_reply_arrives(home: Home) -> None:
    async def test() -> None:
        async with serving(home, echo):
            assert await ask(home, Reload()) == [Done(lines=["Reload"])]
            assert await ask(home, Stop(peer="用户")) == [Done(lines=["Stop"])]

    run(test)


def test_a_login_shows_asks_hears_the_code_and_ends(home: Home) -> None:
    async def login(request: CtlRequest, conversation: Conversation) -> None:
        assert request == Login(name="work", role=Role.GUEST)
        conversation.reply(QrShown(url="https://x", number=1, of=3))
        conversation.reply(Progress(line="scanned"))
        conversation.reply(CodeWanted(again=False))
        code = await conversation.next()
        conversation.reply(Done(lines=[code.code]))

    def talk() -> list[CtlReply]:
        heard = []
        with Client(home.path, silence_s=20) as client:
            for reply in client.ask(Login(name="work", role=Role.GUEST)):
                heard.append(reply)
                if isinstance(reply, CodeWanted):
                    client.say(VerifyCode(code="123456"))
        return heard

    async def test() -> None:
        async with serving(home, login):
            heard = await asyncio.to_thread(talk)

        assert [type(reply) for reply in heard] == [QrShown, Progress, CodeWanted, Done]
        assert heard[-1] == Done(lines=["123456"])

    run(test)


def test_a_verb_may_take_longer_than_the_silence_a_client_bears(home: Home) -> None:
    async def slow(request: CtlRequest, conversation: Conversation) -> None:
        await asyncio.sleep(1.5)
        conversation.reply(Done(lines=["at last"]))

    async def test() -> None:
        async with serving(home, slow):
            assert await ask(home, Shutdown(), silence_s=1) == [Done(lines=["at last"])]

    run(test)


def test_when_the_client_goes_its_handler_is_cancelled(home: Home) -> None:
    async def test() -> None:
        started, cancelled = asyncio.Event(), asyncio.Event()

        async def wait(request: CtlRequest, conversation: Conversation) -> None:
            started.set()
            try:
                await conversation.next()
            except asyncio.CancelledError:
                cancelled.set()
                raise

        async with serving(home, wait):
            client = await asyncio.to_thread(Client, home.path)
            client.say(Login())
            await started.wait()
            await asyncio.to_thread(client.__exit__)

            await cancelled.wait()
            assert not cancelled_is_fatal(asyncio.all_tasks())

    def cancelled_is_fatal(tasks: set[asyncio.Task[None]]) -> bool:
        return "serve" not in {task.get_name() for task in tasks}

    run(test)


def test_an_error_of_the_handler_is_a_failure_in_one_line(home: Home) -> None:
    async def refuse(request: CtlRequest, conversation: Conversation) -> None:
        raise BridgeError("the disk is full")

    async def test() -> None:
        async with serving(home, refuse):
            assert await ask(home, Reload()) == [Failed(code=1, line="the disk is full")]

    run(test)


def test_a_bug_in_a_handler_ends_the_server_loudly(home: Home) -> None:
    async def forget(request: CtlRequest, conversation: Conversation) -> None:
        return

    async def test() -> None:
        server = CtlServer(home)
        serve = asyncio.create_task(server.serve(forget))
        client = await asyncio.to_thread(Client, home.path)
        client.say(Status())
        try:
            with pytest.raises(ExceptionGroup) as caught:
                await serve
        finally:
            await asyncio.to_thread(client.__exit__)
            server.close()
        assert caught.group_contains(RuntimeError, match="Status was left without an answer")

    run(test)


def test_lone_surrogates_and_answers_that_are_too_long_do_not_stop_the_server(home: Home) -> None:
    async def odd(request: CtlRequest, conversation: Conversation) -> None:
        conversation.reply(Done(lines=["a\ud800b" if isinstance(request, Reload) else "x" * 2_000_000]))

    async def test() -> None:
        async with serving(home, odd):
            assert await ask(home, Reload()) == [Done(lines=["a\ufffdb"])]
            assert await ask(home, Status()) == [Failed(code=1, line="the answer is too long")]

    run(test)


def test_an_answer_close_to_the_cap_arrives_whole(home: Home) -> None:
    async def long(request: CtlRequest, conversation: Conversation) -> None:
        conversation.reply(Done(lines=["x" * 1_000_000]))

    async def test() -> None:
        async with serving(home, long):
            (reply,) = await ask(home, Status())
            assert isinstance(reply, Done)
            assert len(reply.lines[0]) == 1_000_000

    run(test)


def raw(home: Home) -> zmq.Socket[bytes]:
    """A DEALER with the operator's key that may say anything."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    dealer.curve_serverkey = (home.run / "ctl-server.pub").read_bytes().strip()
    dealer.curve_publickey, dealer.curve_secretkey = (home.run / "ctl-client.key").read_bytes().split()
    dealer.rcvtimeo = 20_000
    dealer.connect(f"ipc://{home.ctl_socket}")
    return dealer


def close(dealer: "zmq.Socket[bytes]") -> None:
    dealer.close(linger=0)
    dealer.context.term()


@pytest.mark.parametrize("garbage", [b"\x00", b"\xc1", b"x" * 1000, encode(AccountsReply(accounts=[]))])
def test_garbage_is_refused_and_the_next_request_is_answered(home: Home, garbage: bytes) -> None:
    def talk() -> tuple[bytes, bytes]:
        dealer = raw(home)
        try:
            dealer.send(garbage)
            first = dealer.recv()
            dealer.send(encode(Accounts()))
            return first, dealer.recv()
        finally:
            close(dealer)

    async def test() -> None:
        async with serving(home, echo):
            first, second = await asyncio.to_thread(talk)

        failed = ctl_reply.decode(first)
        assert isinstance(failed, Failed)
        assert "same version" in failed.line
        assert ctl_reply.decode(second) == Done(lines=["Accounts"])

    run(test)


def test_a_code_that_nobody_asked_for_is_refused(home: Home) -> None:
    def talk() -> bytes:
        dealer = raw(home)
        try:
            dealer.send(encode(VerifyCode(code="1")))
            return dealer.recv()
        finally:
            close(dealer)

    async def test() -> None:
        async with serving(home, echo):
            reply = ctl_reply.decode(await asyncio.to_thread(talk))
        assert reply == Failed(code=1, line="no login is waiting for a code")

    run(test)


def test_conversations_are_bounded_and_one_more_is_refused_in_one_line(home: Home) -> None:
    async def test() -> None:
        busy = asyncio.Event()
        running = 0

        async def hold(request: CtlRequest, conversation: Conversation) -> None:
            nonlocal running
            running += 1
            if running == CONVERSATIONS:
                busy.set()
            await conversation.next()

        dealers = []
        async with serving(home, hold):
            for _ in range(CONVERSATIONS):
                dealers.append(await asyncio.to_thread(raw, home))
                dealers[-1].send(encode(Login()))
            await busy.wait()

            (refused,) = await ask(home, Status())

            for dealer in dealers:
                await asyncio.to_thread(close, dealer)
        assert refused == Failed(code=1, line="too many calls of bridge-ctl at once; try again")

    run(test)


def test_socket_and_keys_are_the_operators_alone_and_go_with_the_server(home: Home) -> None:
    async def test() -> None:
        async with serving(home, echo):
            await ask(home, Reload())
            modes = {entry.name: stat.S_IMODE(entry.lstat().st_mode) for entry in home.run.iterdir()}
            assert modes.pop("lock") is not None
            assert modes == {"ctl.sock": 0o600, "ctl-server.pub": 0o600, "ctl-client.key": 0o600}
        assert [entry.name for entry in home.run.iterdir()] == ["lock"]

    run(test)


@pytest.mark.parametrize("wrong", ["client", "server"])
def test_a_wrong_key_is_refused_at_once(home: Home, wrong: str) -> None:
    async def never(request: CtlRequest, conversation: Conversation) -> None:
        raise AssertionError("a stranger was heard")

    async def test() -> None:
        async with serving(home, never):
            public, secret = zmq.curve_keypair()
            if wrong == "client":
                (home.run / "ctl-client.key").write_bytes(public + b"\n" + secret + b"\n")
            else:
                (home.run / "ctl-server.pub").write_bytes(public + b"\n")
            with pytest.raises(NotAdmitted, match="does not accept the key"):
                await ask(home, Status())

    run(test)


def test_a_client_without_any_key_is_never_heard(home: Home) -> None:
    async def test() -> None:
        heard = []

        async def note(request: CtlRequest, conversation: Conversation) -> None:
            heard.append(request)
            conversation.reply(Done(lines=[]))

        def knock() -> None:
            context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
            dealer = context.socket(zmq.DEALER)
            dealer.linger = 0
            monitor = dealer.get_monitor_socket(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_DISCONNECTED)
            monitor.rcvtimeo = 20_000
            dealer.connect(f"ipc://{home.ctl_socket}")
            dealer.send(encode(Status()))
            monitor.recv_multipart()  # turned away
            dealer.disable_monitor()
            context.destroy(linger=0)

        async with serving(home, note):
            await asyncio.to_thread(knock)
            assert await ask(home, Reload()) == [Done(lines=[])]
        assert heard == [Reload()]

    run(test)


def test_the_socket_of_a_dead_supervisor_is_replaced(home: Home) -> None:
    """B-090"""
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(home.ctl_socket))
    assert home.ctl_socket.is_socket()

    async def test() -> None:
        async with serving(home, echo):
            assert await ask(home, Reload()) == [Done(lines=["Reload"])]

    run(test)


def test_a_socket_that_somebody_listens_on_is_left_alone(home: Home) -> None:
    """B-090"""

    async def test() -> None:
        with socket.socket(socket.AF_UNIX) as foreign:
            foreign.bind(str(home.ctl_socket))
            foreign.listen()
            with pytest.raises(CtlSocketError, match=r"ctl\.sock: another process listens there"):
                CtlServer(home)
            assert home.ctl_socket.is_socket()

    run(test)


@pytest.mark.parametrize("kind", ["file", "link", "folder"])
def test_a_foreign_thing_in_the_sockets_place_is_named_and_left_alone(home: Home, kind: str) -> None:
    """B-090"""
    target = home.run / "target"
    target.write_text("precious")
    match kind:
        case "file":
            home.ctl_socket.write_text("precious")
        case "link":
            home.ctl_socket.symlink_to(target)
        case _:
            home.ctl_socket.mkdir()

    async def test() -> None:
        with pytest.raises(CtlSocketError, match=r"ctl\.sock: something that is no socket lies there; move it away"):
            CtlServer(home)

    run(test)

    assert os.path.lexists(home.ctl_socket)
    assert target.read_text() == "precious"


def test_a_folder_that_cannot_hold_the_socket_is_fatal_and_a_later_start_is_good(home: Home) -> None:
    """B-109"""
    (home.run / "sockets").symlink_to(home.path / "nowhere")

    async def fails() -> None:
        with pytest.raises(CtlSocketError, match="the control socket cannot be opened"):
            CtlServer(home)

    run(fails)
    (home.run / "sockets").unlink()

    async def works() -> None:
        async with serving(home, echo):
            assert await ask(home, Reload()) == [Done(lines=["Reload"])]

    run(works)


def test_a_home_too_long_for_a_socket_is_served_all_the_same(tmp_path: Path) -> None:
    home = Home(tmp_path / ("long" * 30))
    home.make()
    (tmp_path / "r").mkdir()
    home.make_sockets(str(tmp_path / "r"))

    async def test() -> None:
        async with serving(home, echo):
            assert await ask(home, Reload()) == [Done(lines=["Reload"])]

    with open(home.lock, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        run(test)
