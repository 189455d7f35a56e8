"""HTTP for this channel: one pool of connections, whose requests are bounded in time and size.

In: method, URL, headers, a body of known length. Out: wire.Answer, read whole, or Unavailable with one line that holds no
secret. Redirects are not followed, cookies not kept, the environment not read, and one quiet poll is told apart from
every kind of fault. Neighbours: client.py and login.py ask, wire.py reads the answers.
"""

import asyncio
import functools
import http.cookiejar
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

from supervisor.channels.base import Unavailable
from supervisor.channels.wechat.wire import Answer, is_loopback
from supervisor.http_library import httpx

CONNECT_S = 10.0
POOL_S = 5.0
BODY_S = 20.0  # from the answer's head to its last byte
BODY_BYTES = 8 * 1024 * 1024
RETRY_AFTER_S = 300.0  # most that a server may ask us to wait

# At INFO httpx logs whole URLs (a QR ticket is one), at DEBUG httpcore logs headers (the bot token is one).
for _name in ("httpx", "httpcore"):
    logging.getLogger(_name).setLevel(logging.WARNING)


class Silent(Unavailable):
    """The server took the request and said nothing in time: for a long poll, nothing happened."""


@dataclass(slots=True, eq=False)
class _Pool:
    """users: requests under way. A retired pool takes no more of them and is closed behind the last one."""

    client: httpx.AsyncClient
    users: int = 0
    retired: bool = False


class Http:
    """Connections to one host. Its pool is replaced when it no longer gives one away: dead connections may fill it,
    and a client that only waits for them is deaf for ever."""

    def __init__(self, base_url: str, *, proxy: str | None, user_agent: str, connections: int) -> None:
        host = urlsplit(base_url).hostname or ""
        self._proxy = None if is_loopback(host) else proxy
        self._where = f"proxy {_origin(self._proxy)}" if self._proxy else host
        self._user_agent = user_agent
        self._connections = connections
        self._pool: _Pool | None = None
        self.pools = 0  # built so far
        self.receiving = 0  # answers whose head has come and whose end has not

    async def ask(
        self,
        name: str,
        method: str,
        url: str,
        *,
        headers: dict[str, str],
        body: bytes | AsyncIterator[bytes] | None = None,
        silence_s: float,
        body_s: float = BODY_S,
        most_bytes: int = BODY_BYTES,
        sink: Callable[[bytes], None] | None = None,
    ) -> Answer:
        """One request and its whole answer. name stands for it in errors, since a URL may hold secrets.

        body       in pieces: its length stands in the headers
        silence_s  longest wait for the answer's head
        sink       takes the body of a good answer as it comes; Answer.body is empty then. What it raises comes out here
        raises     Silent: the head did not come; Unavailable: anything else
        """
        pool = self._open_pool(name)
        pool.users += 1
        try:
            return await self._ask(pool, name, method, url, headers, body, silence_s, body_s, most_bytes, sink)
        except httpx.PoolTimeout:
            self._retire(pool)
            raise Unavailable(f"{name}: no free connection for {POOL_S:g} s, starting afresh") from None
        finally:
            pool.users -= 1
            if pool.retired and not pool.users:
                await pool.client.aclose()

    async def _ask(
        self,
        pool: _Pool,
        name: str,
        method: str,
        url: str,
        headers: dict[str, str],
        body: bytes | AsyncIterator[bytes] | None,
        silence_s: float,
        body_s: float,
        most_bytes: int,
        sink: Callable[[bytes], None] | None,
    ) -> Answer:
        timeout = httpx.Timeout(connect=CONNECT_S, write=CONNECT_S, pool=POOL_S, read=silence_s)
        # A body in pieces takes its time on the way out; each piece has `write` to itself.
        head_s = silence_s + CONNECT_S + POOL_S + (0.0 if body is None or isinstance(body, bytes) else body_s)
        try:
            request = pool.client.build_request(method, url, headers=headers, content=body, timeout=timeout)
            # The client's read timeout starts anew with every byte; this one does not.
            async with asyncio.timeout(head_s):
                response = await pool.client.send(request, stream=True)
        except httpx.PoolTimeout:
            raise
        except httpx.ReadTimeout:
            raise Silent(f"{name}: no answer within {silence_s:g} s") from None
        except TimeoutError:
            raise Unavailable(f"{name}: no complete answer head within {head_s:g} s") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            # Not chained: the words of httpx's and h11's errors may quote a header or an address.
            raise Unavailable(f"{name}: {_told(error)} ({self._where})") from None
        self.receiving += 1
        try:
            async with asyncio.timeout(body_s):
                read = await _read(response, name, most_bytes, sink)
        except TimeoutError:
            raise Unavailable(f"{name}: the answer's body did not end within {body_s:g} s") from None
        except (httpx.HTTPError, httpx.StreamError) as error:
            raise Unavailable(f"{name}: {_told(error)} inside the answer ({self._where})") from None
        finally:
            self.receiving -= 1
            await response.aclose()
        retry_after_s = _retry_after_s(response.headers.get("retry-after", ""))
        return Answer(response.status_code, read, retry_after_s, response.headers.get("x-encrypted-param", ""))

    async def aclose(self) -> None:
        """Also ends what is still under way."""
        if self._pool:
            pool, self._pool = self._pool, None
            await pool.client.aclose()

    def _open_pool(self, name: str) -> _Pool:
        if self._pool is None:
            try:
                client = httpx.AsyncClient(
                    verify=_tls(),
                    proxy=self._proxy,
                    trust_env=False,
                    follow_redirects=False,
                    limits=httpx.Limits(max_connections=self._connections, keepalive_expiry=30.0),
                    cookies=http.cookiejar.CookieJar(http.cookiejar.DefaultCookiePolicy(allowed_domains=[])),
                    # No compression: a body's size is then the size that was counted.
                    headers={"User-Agent": self._user_agent, "Accept-Encoding": "identity"},
                )
            except (ImportError, ValueError, httpx.InvalidURL) as error:
                raise Unavailable(f"{name}: {self._where} cannot be used ({type(error).__name__})") from None
            self._pool = _Pool(client)
            self.pools += 1
        return self._pool

    def _retire(self, pool: _Pool) -> None:
        pool.retired = True
        if self._pool is pool:
            self._pool = None


async def _read(
    response: httpx.Response, name: str, most_bytes: int, sink: Callable[[bytes], None] | None = None
) -> bytes:
    read = bytearray()
    if sink is not None and response.is_success:
        async for chunk in response.aiter_bytes():
            sink(chunk)
        return b""
    async for chunk in response.aiter_bytes():
        read += chunk
        if len(read) > most_bytes:
            raise Unavailable(f"{name}: the answer is longer than {most_bytes} bytes")
    return bytes(read)


@functools.cache
def _tls() -> ssl.SSLContext:
    return httpx.create_ssl_context(trust_env=False)


def _origin(proxy: str) -> str:
    """The proxy without the name and password it may carry."""
    parts = urlsplit(proxy)
    return f"{parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}"


def _told(error: BaseException) -> str:
    """The error's class, and the system's own words for it where it has any."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"{type(error).__name__}: {cause.verify_message}"
        if isinstance(cause, socket.gaierror):
            return f"{type(error).__name__}: the host name is not known"
        if isinstance(cause, OSError) and cause.strerror:
            return f"{type(error).__name__}: {cause.strerror}"
        cause = cause.__cause__ or cause.__context__
    return type(error).__name__


def _retry_after_s(header: str) -> float:
    return min(float(header), RETRY_AFTER_S) if header.isascii() and header.isdecimal() else 0.0
