"""The web proxy of `network = true`: CONNECT and plain http://, to public addresses alone. Part of the gateway.

A name is resolved here, every address that comes of it is judged (core/proxy), and the connection is made to the very
address that was judged: no second look-up, and so no name that means one thing to the judge and another to the socket.
"""

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Sequence

import psutil  # type: ignore[import-untyped]  # it ships no types

from supervisor.core.gateway import Holder
from supervisor.core.proxy import HEAD_BYTES, NotUnderstood, Wanted, is_public, parse

HEAD_S = 15.0
CONNECT_S = 10.0
IDLE_S = 600.0
PIECE_BYTES = 64 * 1024
TUNNELS_PER_WORKER = 64
ADDRESSES = 4  # of one name, tried in turn

Judge = Callable[[str], bool]
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]


def public(address: str) -> bool:
    """Judged anew for every connection: addresses of this machine come and go."""
    own = {entry.address.partition("%")[0] for entries in psutil.net_if_addrs().values() for entry in entries}
    return is_public(address, frozenset(own))


async def resolve(host: str, port: int) -> Sequence[str]:
    """raises OSError"""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for _, _, _, _, address in found))


class Proxy:
    """judge and resolve are the product's own unless a test has others."""

    def __init__(self, judge: Judge = public, resolve: Resolve = resolve) -> None:
        self._judge = judge
        self._resolve = resolve
        self._whose: Callable[[str], Holder | None] = lambda token: None
        self._open: dict[bytes, int] = {}

    def attach(self, whose: Callable[[str], Holder | None]) -> None:
        self._whose = whose

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, to its end. Whatever the other side does ends here."""
        try:
            with contextlib.suppress(OSError, TimeoutError):
                await self._serve(reader, writer)
        finally:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(HEAD_S):
                head = await reader.readuntil(b"\r\n\r\n")
            wanted = parse(head) if len(head) <= HEAD_BYTES else None
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, NotUnderstood):
            wanted = None
        if wanted is None:
            await _refuse(writer, "400 Bad Request", "not understood")
            return
        holder = self._whose(wanted.token)
        if holder is None:
            await _refuse(
                writer, "407 Proxy Authentication Required", "no worker has this token", 'Proxy-Authenticate: Basic realm="bridge"'
            )  # fmt: skip
            return
        if not holder.issue.proxy:
            await _refuse(writer, "403 Forbidden", "this conversation has no network")
            return
        digest = holder.issue.digest
        if self._open.get(digest, 0) >= TUNNELS_PER_WORKER:
            await _refuse(writer, "429 Too Many Requests", f"{TUNNELS_PER_WORKER} connections are open already")
            return
        self._open[digest] = self._open.get(digest, 0) + 1
        try:
            await self._carry(wanted, reader, writer)
        finally:
            self._open[digest] -= 1
            if not self._open[digest]:
                del self._open[digest]

    async def _carry(self, wanted: Wanted, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(CONNECT_S):
                addresses = await self._resolve(wanted.host, wanted.port)
        except (OSError, UnicodeError):
            await _refuse(writer, "502 Bad Gateway", "this name has no address")
            return
        allowed = [address for address in addresses if self._judge(address)][:ADDRESSES]
        if not allowed:
            await _refuse(writer, "403 Forbidden", "public addresses only")
            return
        for address in allowed:
            try:
                async with asyncio.timeout(CONNECT_S):
                    far_reader, far_writer = await asyncio.open_connection(address, wanted.port)
                break
            except OSError:
                continue
        else:
            await _refuse(writer, "502 Bad Gateway", "it cannot be reached")
            return
        if wanted.tunnel:
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        else:
            far_writer.write(wanted.opening)
        tunnel = _Tunnel()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(tunnel.pump(reader, far_writer), name="out")
                tasks.create_task(tunnel.pump(far_reader, writer), name="in")
        except* (OSError, TimeoutError):
            writer.transport.abort()  # one side is gone, and what the other has not read is of no use
            far_writer.transport.abort()
        finally:
            far_writer.close()


class _Tunnel:
    """Open as long as something comes from either side now and then."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._heard = self._loop.time()

    async def pump(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        """raises OSError, TimeoutError"""
        while True:
            try:
                async with asyncio.timeout(IDLE_S):
                    piece = await source.read(PIECE_BYTES)
            except TimeoutError:
                if self._loop.time() - self._heard < IDLE_S:
                    continue
                raise
            if not piece:
                break
            self._heard = self._loop.time()
            target.write(piece)
            async with asyncio.timeout(IDLE_S):
                await target.drain()
        if target.can_write_eof():
            target.write_eof()


async def _refuse(writer: asyncio.StreamWriter, status: str, reason: str, *headers: str) -> None:
    body = f"{reason}\n".encode()
    lines = [f"HTTP/1.1 {status}", *headers, "Content-Type: text/plain", f"Content-Length: {len(body)}"]
    writer.write("\r\n".join([*lines, "Connection: close", "", ""]).encode() + body)
    await writer.drain()
