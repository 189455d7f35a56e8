"""The gateway: a process of its own through which workers reach model servers, and the public web where they may.

It alone holds API keys, which come over the control channel and never in argv or environment. In come a worker's HTTP
requests with its token; out go the same requests with the key to the one model server that the settings name, and the
answers, unbuffered, without the key. Tokens spent are counted here and booked by the supervisor (gatekeeper.py), whose
end is this process's end. core/gateway decides, core/metering counts.
"""

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from typing import Any, assert_never
from urllib.parse import parse_qsl, urlencode

import msgspec
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from protocol.gateway import (
    AskedForMore,
    CallFailed,
    Issue,
    Lend,
    Revoke,
    Serving,
    Spent,
    ToGateway,
    Upstream,
    to_gateway,
)
from protocol.ids import LeaseKey
from supervisor import platform
from supervisor.core.gateway import (
    CALLS,
    Call,
    Desk,
    Holder,
    Refusal,
    Why,
    call_for,
    headers_back,
    headers_on,
    spoken,
    token_in,
)
from supervisor.core.metering import Meter, Scrubber, estimate, with_usage
from supervisor.core.proxy import is_for_a_proxy
from supervisor.http_library import httpx
from supervisor.pairend import PairEnd
from supervisor.proxy import Proxy

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

HEAD_S = 15.0  # from a connection to its first request's head
BODY_S = 120.0  # from there to the request's end
LEND_S = 10.0
KEEP_ALIVE_S = 75
CONNECT_S, ANSWER_S = 10.0, 600.0  # a thinking model is silent for minutes
LINE_BYTES = 8192
ERROR_BYTES = 64 * 1024  # of a model server's error
READ_BESIDE_BYTES = 1024 * 1024  # a longer request is read in a thread, so that others' answers flow on
QUERY = frozenset(("alt", "beta"))  # all that the three dialects put into a query


class Gateway:
    """The ASGI application. attach() before the first request."""

    def __init__(self) -> None:
        self._desk = Desk()
        self._control: PairEnd[ToGateway] | None = None
        self._waiting: dict[LeaseKey, asyncio.Future[int]] = {}
        self._client = httpx.AsyncClient(
            trust_env=False,
            follow_redirects=False,
            timeout=httpx.Timeout(ANSWER_S, connect=CONNECT_S),
            limits=httpx.Limits(max_connections=CALLS, max_keepalive_connections=16),
        )

    def attach(self, control: PairEnd[ToGateway]) -> None:
        self._control = control

    def obey(self, order: ToGateway) -> None:
        match order:
            case Issue():
                self._desk.issue(order)
            case Revoke(key=key):
                self._desk.revoke(key)
            case Lend(key=key, tokens=tokens):
                holder = self._desk.holder(key)
                if holder is not None:
                    holder.lent(tokens)
                waiting = self._waiting.pop(key, None)
                if waiting is not None and not waiting.done():
                    waiting.set_result(tokens)
            case _:
                assert_never(order)

    def whose(self, token: str) -> Holder | None:
        holder = self._desk.whose(token)
        if holder is None and token and self._control is not None:
            self._control.read()  # it may have been issued just now: that was written before its worker was started
            holder = self._desk.whose(token)
        return holder

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, method = scope["raw_path"].decode("ascii", "replace"), scope["method"]
        if (method, path) == ("HEAD", "/"):  # some agents ask whether anybody is there
            await _answer(send, 200, b"")
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        holder = self.whose(token_in(headers))
        refusal: Refusal | None
        if holder is None:
            refusal = Refusal(Why.TOKEN, "no worker of this bridge has this token")
        else:
            refusal = self._desk.enter(holder)
            if refusal is None:
                try:
                    refusal = await self._serve(holder, method, path, headers, scope, receive, send)
                finally:
                    self._desk.leave(holder)
        if refusal is not None:
            await _answer(send, refusal.status, refusal.body(spoken(path)))

    async def _serve(
        self,
        holder: Holder,
        method: str,
        path: str,
        headers: dict[str, str],
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> Refusal | None:
        """None: answered."""
        upstream = holder.issue.upstream
        if upstream is None:
            return Refusal(Why.NOT_CONFIGURED, "not configured: the operator of this bridge has set no model up")
        call = call_for(method, path, upstream.dialect)
        if call is None:
            return Refusal(Why.NO_SUCH_CALL, f"the bridge's model gateway has no {method} {path[:200]}")
        if call.dialect is not upstream.dialect:
            return Refusal(Why.WRONG_DIALECT, f"the model server of this bridge speaks {upstream.dialect.value} alone")
        held = bytearray()
        try:
            refusal = await self._read_body(receive, held)
            if refusal is not None:
                return refusal
            body, cost = bytes(held), 0
            if call.metered:
                if (refusal := await self._allowed(holder)) is not None:
                    return refusal
                try:
                    prepare = asyncio.to_thread if len(body) > READ_BESIDE_BYTES else _at_once
                    body, cost = await prepare(_prepared, call, body)
                except ValueError:
                    return Refusal(Why.BODY, "the request is no JSON object")
            target = _target(upstream, call, scope["query_string"])
            request = self._client.build_request(
                method, target, headers=headers_on(headers, upstream), content=body or None
            )
            return await self._pass_on(_Passage(self, holder, upstream, call, cost), request, scope, receive, send)
        finally:
            self._desk.give_bytes(len(held))

    async def _read_body(self, receive: Receive, held: bytearray) -> Refusal | None:
        """Into held, whose bytes are counted as held from here on."""
        try:
            async with asyncio.timeout(BODY_S):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return Refusal(Why.BODY, "the request broke off")
                    chunk = message.get("body", b"")
                    so_far = len(held)
                    held += chunk
                    if (refusal := self._desk.take_bytes(len(chunk), so_far)) is not None:
                        return refusal
                    if not message.get("more_body", False):
                        return None
        except TimeoutError:
            return Refusal(Why.BODY, "the request takes too long to arrive")

    async def _allowed(self, holder: Holder) -> Refusal | None:
        """Wait for a loan where the worker's last one is used up."""
        if not holder.must_ask:
            return None
        assert self._control is not None
        waiting = self._waiting.get(holder.key)
        if waiting is None:
            waiting = self._waiting[holder.key] = asyncio.get_running_loop().create_future()
            self._control.send(AskedForMore(holder.key))
        try:
            async with asyncio.timeout(LEND_S):
                lent = await asyncio.shield(waiting)
        except TimeoutError:
            self._waiting.pop(holder.key, None)
            return Refusal(Why.BUSY, "the bridge does not say whether there are tokens left; try again in a moment")
        return None if lent > 0 else Refusal(Why.BUDGET, "today's tokens of this conversation are used up")

    async def _pass_on(
        self, passage: "_Passage", request: httpx.Request, scope: Scope, receive: Receive, send: Send
    ) -> Refusal | None:
        """Until the answer has been passed on, or the worker has gone away, which ends the upstream request as well."""
        async with asyncio.TaskGroup() as tasks:
            carrying = tasks.create_task(passage.carry(self._client, request, send), name="call")
            listening = tasks.create_task(_until_gone(receive), name="worker gone")
            await asyncio.wait({carrying, listening}, return_when=asyncio.FIRST_COMPLETED)
            carrying.cancel()
            listening.cancel()
        if carrying.cancelled():
            return None  # nobody reads what we would say
        if passage.broken:
            scope["state"]["transport"].abort()  # an answer that looks whole would be a lie
        return carrying.result()

    def spent(self, holder: Holder, input_tokens: int, output_tokens: int) -> None:
        if holder.issue.limited:
            holder.left -= input_tokens + output_tokens
        self._tell(Spent(holder.key, input_tokens, output_tokens))

    def failed(self, holder: Holder, status: int) -> None:
        self._tell(CallFailed(holder.key, status))

    def _tell(self, message: msgspec.Struct) -> None:
        if self._control is not None:
            self._control.send(message)

    async def close(self) -> None:
        await self._client.aclose()


class _Passage:
    """One call on its way. broken: the model server broke off in the middle of its answer."""

    def __init__(self, gateway: Gateway, holder: Holder, upstream: Upstream, call: Call, cost: int) -> None:
        self._gateway = gateway
        self._holder = holder
        self._upstream = upstream
        self._call = call
        self._cost = cost  # estimated, of the request
        self._meter: Meter | None = None
        self.broken = False

    async def carry(self, client: httpx.AsyncClient, request: httpx.Request, send: Send) -> Refusal | None:
        # Also a request that is abandoned before its answer begins has its price.
        self._meter = Meter(streamed=True)
        try:
            response = await client.send(request, stream=True)
            try:
                if response.status_code != 200:
                    self._meter = None  # no model server charges for an error
                    return await self._pass_error(response, send)
                kind = response.headers.get("content-type", "")
                self._meter = Meter(streamed=kind.startswith("text/event-stream"))
                await self._stream(response, self._meter, send)
            finally:
                await response.aclose()
        except httpx.TransportError:
            if self.broken:
                return None
            self._meter = None
            self._gateway.failed(self._holder, 0)
            return Refusal(Why.UNREACHABLE, "the model server cannot be reached")
        finally:
            self._settle(whole=False)
        return None

    def _settle(self, *, whole: bool) -> None:
        """Once: what the call costs."""
        meter, self._meter = self._meter, None
        if meter is not None and self._call.metered:
            usage = meter.settle(estimated_input=self._cost, whole=whole)
            self._gateway.spent(self._holder, usage.input_tokens, usage.output_tokens)

    async def _stream(self, response: httpx.Response, meter: Meter, send: Send) -> None:
        scrubber = Scrubber(self._upstream.key.encode())
        await _begin(send, 200, headers_back(dict(response.headers), self._upstream))
        try:
            async for chunk in response.aiter_bytes():
                meter.feed(chunk)
                if passed := scrubber.feed(chunk):
                    await send({"type": "http.response.body", "body": passed, "more_body": True})
        except httpx.TransportError:
            self.broken = True
            self._gateway.failed(self._holder, 0)
            raise
        self._settle(whole=True)  # before the worker knows that it is over: its next call comes after the bill
        await send({"type": "http.response.body", "body": scrubber.rest()})

    async def _pass_error(self, response: httpx.Response, send: Send) -> Refusal | None:
        status = response.status_code
        self._gateway.failed(self._holder, status)
        if status == 401:
            # Servers like to quote a part of the key; and the worker's own token is not what is wrong.
            return Refusal(Why.KEY_REFUSED, "the model server refuses the key that this bridge was set up with")
        if status < 400:
            return Refusal(Why.UPSTREAM, f"the model server answered with status {status}")
        body = bytearray()
        async for chunk in response.aiter_bytes():
            body += chunk[: ERROR_BYTES - len(body)]
            if len(body) == ERROR_BYTES:
                break
        scrubber = Scrubber(self._upstream.key.encode())
        passed = scrubber.feed(bytes(body)) + scrubber.rest()
        await _begin(send, status, headers_back(dict(response.headers), self._upstream))
        await send({"type": "http.response.body", "body": passed})
        return None


async def _at_once(work: Callable[..., Any], *arguments: Any) -> Any:
    return work(*arguments)


def _prepared(call: Call, body: bytes) -> tuple[bytes, int]:
    """The body to send, and what it costs by estimate. raises ValueError"""
    try:
        request: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError from error
    if not isinstance(request, dict):
        raise ValueError
    changed = None if call.counts else with_usage(request)
    return changed or body, estimate(request)


def _target(upstream: Upstream, call: Call, query: bytes) -> str:
    kept = [(name, value) for name, value in parse_qsl(query.decode("ascii", "replace")) if name in QUERY]
    return upstream.base_url + call.path + (f"?{urlencode(kept)}" if kept else "")


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _begin(send: Send, status: int, headers: dict[str, str]) -> None:
    raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})


async def _answer(send: Send, status: int, body: bytes) -> None:
    headers = {"content-type": "application/json", "content-length": str(len(body))}
    if status in (429, 503):
        headers["retry-after"] = "1"
    await _begin(send, status, headers)
    await send({"type": "http.response.body", "body": body})


class Front(H11Protocol):
    """Looks at a connection's first line: calls of a model stay here, whatever is meant for a web proxy goes there."""

    def __init__(
        self,
        config: uvicorn.Config,
        state: ServerState,
        proxy: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]],
        tasks: asyncio.TaskGroup,
    ) -> None:
        super().__init__(config, state, {})
        self._proxy = proxy
        self._group = tasks
        self._first: bytearray | None = bytearray()
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.app_state = {"transport": transport}
        self._deadline = self.loop.call_later(HEAD_S, self._too_slow)

    def data_received(self, data: bytes) -> None:
        if self._first is None:
            super().data_received(data)
            return
        self._first += data
        if b"\n" not in self._first and len(self._first) < LINE_BYTES:
            return
        first, self._first = bytes(self._first), None
        if is_for_a_proxy(first):
            self._hand_over(first)
        else:
            super().data_received(first)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        super().connection_lost(exc)

    def _too_slow(self) -> None:
        if self.cycle is None:
            self.transport.abort()

    def _hand_over(self, first: bytes) -> None:
        """The connection is a proxy's from here on."""
        assert self._deadline is not None
        self._deadline.cancel()
        self.connections.discard(self)
        reader = asyncio.StreamReader(loop=self.loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=self.loop)
        self.transport.set_protocol(protocol)
        protocol.connection_made(self.transport)
        protocol.data_received(first)
        writer = asyncio.StreamWriter(self.transport, protocol, reader, self.loop)
        self._group.create_task(self._proxy(reader, writer), name="proxy")


async def serve(listener: socket.socket, control: socket.socket, *, proxy: Proxy | None = None) -> None:
    """Until the supervisor's end of control is closed. listener: bound, and shared with the supervisor"""
    gateway = Gateway()
    ended = asyncio.Event()
    end = PairEnd(control, to_gateway, gateway.obey, ended.set)
    gateway.attach(end)
    proxy = proxy or Proxy()
    proxy.attach(gateway.whose)
    # Not uvicorn's Server, which has signal handlers and a stop order of its own: its protocol is all we need.
    config = uvicorn.Config(
        gateway, lifespan="off", ws="none", log_config=None, timeout_keep_alive=KEEP_ALIVE_S, proxy_headers=False,
        server_header=False,
    )  # fmt: skip
    config.load()
    state = ServerState()
    async with asyncio.TaskGroup() as tasks:
        server = await asyncio.get_running_loop().create_server(
            lambda: Front(config, state, proxy.serve, tasks), sock=listener
        )
        end.send(Serving())
        await ended.wait()
        server.close()
        end.close()
        # What is under way belongs to workers that end with the supervisor.
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
    await gateway.close()


def main(proxy: Proxy | None = None) -> None:
    """argv: the listener's descriptor, the control socket's, the supervisor's pid."""
    listener, control, parent = (int(word) for word in sys.argv[1:4])
    platform.die_with_parent()
    if os.getppid() != parent:
        os._exit(1)  # it died before the death signal was set
    platform.harden()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the supervisor's end is ours
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # what a worker sends shall write no log
    asyncio.run(serve(_tcp(listener), socket.socket(fileno=control), proxy=proxy))


def _tcp(descriptor: int) -> socket.socket:
    """With its protocol named: asyncio sets TCP_NODELAY only then, and answers would come 40 ms late without."""
    return socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, fileno=descriptor)
