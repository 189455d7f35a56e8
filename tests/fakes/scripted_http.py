"""An HTTP server on loopback that answers by script, down to the bytes: for clients that must survive anything.

Each endpoint (a path's last part) has its own list of steps, taken one per request; a request beyond them gets status 500.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import TracebackType
from typing import Any, Self

DEADLINE_S = 20.0


class Then(Enum):
    """What happens to the connection after a step's bytes."""

    KEEP = "keep"
    CLOSE = "close"
    HANG = "hang"  # open and silent until the server ends
    RESET = "reset"


@dataclass(frozen=True)
class Step:
    """data goes out as it is; after_s: how long the server holds the request before."""

    data: bytes = b""
    then: Then = Then.KEEP
    after_s: float = 0.0


@dataclass(frozen=True)
class Request:
    """connection: counts from 0."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes
    connection: int

    @property
    def endpoint(self) -> str:
        return self.target.partition("?")[0].rpartition("/")[2]

    @property
    def query(self) -> str:
        return self.target.partition("?")[2]

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def answer(
    body: object = None,
    *,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
    after_s: float = 0.0,
    then: Then = Then.KEEP,
) -> Step:
    """A whole answer. body: bytes and text as they are, anything else as JSON; None = no body."""
    data = (
        b""
        if body is None
        else body
        if isinstance(body, bytes)
        else body.encode()
        if isinstance(body, str)
        else json.dumps(body).encode()
    )
    lines = {"Content-Type": "application/octet-stream", "Content-Length": str(len(data))} | dict(headers or {})
    head = f"HTTP/1.1 {status} Scripted\r\n" + "".join(f"{name}: {value}\r\n" for name, value in lines.items()) + "\r\n"
    return Step(head.encode() + data, then, after_s)


def truncated(body: object, *, keep: int, then: Then = Then.CLOSE) -> Step:
    """An answer that announces all of body and sends its first `keep` bytes."""
    whole = answer(body)
    return Step(whole.data[: len(whole.data) - len(json.dumps(body).encode()) + keep], then)


CLOSE = Step(then=Then.CLOSE)
RESET = Step(then=Then.RESET)
HANG = Step(then=Then.HANG)


@dataclass
class ScriptedHttp:
    script: Mapping[str, Sequence[Step]]
    requests: list[Request] = field(default_factory=list)
    connections: int = 0

    async def __aenter__(self) -> Self:
        self._steps = {endpoint: iter(steps) for endpoint, steps in self.script.items()}
        self._changed = asyncio.Condition()
        self._over = asyncio.Event()
        self._serving: set[asyncio.Task[None]] = set()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)
        await self._server.wait_closed()

    def asked(self, endpoint: str) -> list[Request]:
        return [request for request in self.requests if request.endpoint == endpoint]

    async def until_asked(self, endpoint: str, count: int = 1) -> Request:
        """The count-th request of that endpoint, once it is here."""
        async with asyncio.timeout(DEADLINE_S), self._changed:
            await self._changed.wait_for(lambda: len(self.asked(endpoint)) >= count)
        return self.asked(endpoint)[count - 1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = self.connections
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        try:
            while True:
                request = await _read(reader, number)
                async with self._changed:
                    self.requests.append(request)
                    self._changed.notify_all()
                step = next(self._steps.get(request.endpoint, iter(())), answer("beyond the script", status=500))
                await asyncio.sleep(step.after_s)
                writer.write(step.data)
                await writer.drain()
                if step.then is Then.HANG:
                    await self._over.wait()
                if step.then is Then.RESET:
                    writer.transport.abort()
                if step.then is not Then.KEEP:
                    return
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            return  # also when cancelled: nobody awaits this task, and asyncio would log it as an error
        finally:
            writer.close()


async def _read(reader: asyncio.StreamReader, connection: int) -> Request:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.rstrip("\r\n").split("\r\n")
    method, target, _ = first.split(" ", 2)
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Request(method, target, headers, body, connection)
