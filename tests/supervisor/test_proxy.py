"""supervisor/proxy.py: the web proxy in the real gateway; servers on 127.0.0.2 stand for the public web."""

import asyncio
import base64
from pathlib import Path

import psutil
import pytest

from supervisor.core.policy import Agent
from supervisor.gatekeeper import Admission
from supervisor.proxy import public
from tests.fakes.gateways import Echo, gate, lease
from tests.fakes.workers import in_a_loop


async def ask(admission: Admission, head: str, *, token: str | None = None, then: bytes = b"") -> bytes:
    """What a proxy client sends, and all that comes back."""
    reader, writer = await asyncio.open_connection("127.0.0.1", admission.port)
    secret = base64.b64encode(f"worker:{admission.token if token is None else token}".encode()).decode()
    writer.write(f"{head}\r\nProxy-Authorization: Basic {secret}\r\n\r\n".encode())
    answer = b""
    async with asyncio.timeout(30):
        if then:
            answer = await reader.readuntil(b"\r\n\r\n")
            writer.write(then)
        answer += await reader.read()
    writer.close()
    return answer


@in_a_loop
async def test_a_tunnel_carries_bytes_both_ways_to_a_public_address(tmp_path: Path) -> None:
    async with gate(tmp_path, {}) as gateway, Echo() as web:
        admission = gateway.admit(Agent(), network=True)

        answer = await ask(admission, f"CONNECT public.test:{web.port} HTTP/1.1", then=b"over tls\n")

        assert answer == b"HTTP/1.1 200 Connection established\r\n\r\nOVER TLS\n"
        assert gateway.connects == [("127.0.0.2", web.port)]


@in_a_loop
async def test_a_plain_request_reaches_its_server_without_the_token(tmp_path: Path) -> None:
    async with gate(tmp_path, {}) as gateway, Echo() as web:
        admission = gateway.admit(Agent(), network=True)

        answer = await ask(admission, f"GET http://public.test:{web.port}/a?b HTTP/1.1\r\nHost: public.test")

        assert answer.startswith(b"GET /A?B HTTP/1.1\r\n")
        assert b"authorization" not in web.heard[0].lower()


@in_a_loop
async def test_whatever_is_not_public_is_refused_and_never_connected_to(tmp_path: Path) -> None:
    """The address that was judged is the one that is connected to: nothing is looked up a second time."""
    async with gate(tmp_path, {}) as gateway, Echo() as web:
        admission = gateway.admit(Agent(), network=True)
        own = [
            entry.address.partition("%")[0] for entries in psutil.net_if_addrs().values() for entry in entries
            if entry.family.name in ("AF_INET", "AF_INET6")
        ]  # fmt: skip
        for host in (
            "127.0.0.1",
            "localhost",
            "10.0.0.1",
            "169.254.169.254",
            "private.test",
            "224.0.0.1",
            "[::1]",
            "0.0.0.0",
        ):
            answer = await ask(admission, f"CONNECT {host}:{web.port} HTTP/1.1")
            assert answer.startswith((b"HTTP/1.1 403 ", b"HTTP/1.1 502 ")), host
            answer = await ask(admission, f"GET http://{host}:{web.port}/ HTTP/1.1")
            assert answer.startswith((b"HTTP/1.1 403 ", b"HTTP/1.1 502 ")), host
        for host in own:
            host = f"[{host}]" if ":" in host else host
            assert (await ask(admission, f"CONNECT {host}:{web.port} HTTP/1.1")).startswith(b"HTTP/1.1 403 ")
        assert gateway.connects == []

        both = await ask(admission, f"CONNECT both.test:{web.port} HTTP/1.1", then=b"x")
        assert both.endswith(b"X") and gateway.connects == [("127.0.0.2", web.port)]


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.2", "::1"])
def test_the_products_own_judge_refuses_loopback(address: str) -> None:
    assert not public(address)
    assert public("93.184.216.34")


@in_a_loop
async def test_only_a_worker_with_the_network_has_a_proxy(tmp_path: Path) -> None:
    async with gate(tmp_path, {}) as gateway, Echo() as web:
        having, without = gateway.admit(Agent(), network=True), gateway.admit(Agent(), lease("bob"))
        line = f"CONNECT public.test:{web.port} HTTP/1.1"

        assert (await ask(without, line)).startswith(b"HTTP/1.1 403 ")
        for token in ("", "x", having.token[:-1]):
            assert (await ask(having, line, token=token)).startswith(b"HTTP/1.1 407 ")
        gateway.keeper.revoke(lease())
        assert (await ask(having, line)).startswith(b"HTTP/1.1 407 ")
        assert gateway.connects == []


@in_a_loop
async def test_odd_heads_are_refused(tmp_path: Path) -> None:
    async with gate(tmp_path, {}) as gateway:
        admission = gateway.admit(Agent(), network=True)

        for head in (
            "CONNECT x HTTP/1.1",
            "CONNECT public.test:1 HTTP/1.1\r\nX: " + "y" * 100_000,
            "GET http:/// HTTP/1.1",
        ):
            assert (await ask(admission, head)).startswith(b"HTTP/1.1 400 ")
        assert (await ask(admission, "CONNECT public.test:1 HTTP/1.1")).startswith(b"HTTP/1.1 502 ")
