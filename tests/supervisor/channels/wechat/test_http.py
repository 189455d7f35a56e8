"""One request against servers that misbehave: bounded in time and size, and no secret in any error."""

import asyncio
import logging
import time

import pytest

from supervisor.channels.base import Unavailable
from supervisor.channels.wechat import http as wechat_http
from supervisor.channels.wechat.http import Http, Silent
from supervisor.channels.wechat.wire import Answer
from tests.fakes.scripted_http import CLOSE, HANG, RESET, ScriptedHttp, Step, Then, answer, truncated

pytestmark = pytest.mark.anyio
SECRET = "060000canary"


def http(base_url: str, *, proxy: str | None = None, connections: int = 1) -> Http:
    return Http(base_url, proxy=proxy, user_agent="bridge-supervisor/0.1.0", connections=connections)


async def ask(
    client: Http, base_url: str, *, silence_s: float = 20.0, body_s: float = 20.0, most_bytes: int = 1000
) -> Answer:
    return await client.ask(
        "probe",
        "POST",
        f"{base_url}/probe?secret={SECRET}",
        headers={"Authorization": f"Bearer {SECRET}"},
        body=b"{}",
        silence_s=silence_s,
        body_s=body_s,
        most_bytes=most_bytes,
    )


async def outcome(step: Step, **bounds: float) -> Answer | Exception:
    async with ScriptedHttp({"probe": [step]}) as server:
        client = http(server.url)
        try:
            return await ask(client, server.url, **bounds)  # type: ignore[arg-type]
        except Exception as error:
            return error
        finally:
            await client.aclose()


async def test_an_answer_is_read_whole_with_its_status_and_retry_after() -> None:
    read = await outcome(answer("busy", status=429, headers={"Retry-After": "7"}))

    assert read == Answer(429, b"busy", 7.0)


async def test_a_body_goes_out_with_its_length_and_never_in_chunks() -> None:
    async with ScriptedHttp({"probe": [answer("{}")]}) as server:
        client = http(server.url)
        await ask(client, server.url)
        await client.aclose()

    assert server.requests[0].headers["content-length"] == "2"
    assert "transfer-encoding" not in server.requests[0].headers


async def test_b011_only_a_missing_answer_counts_as_silence() -> None:
    assert isinstance(await outcome(HANG, silence_s=0.2), Silent)


@pytest.mark.parametrize(
    "step",
    [
        CLOSE,
        RESET,
        Step(b"HTTP/1.1 200", Then.CLOSE),
        Step(b"not http at all\r\n\r\n", Then.CLOSE),
        truncated({"ret": 0, "msgs": []}, keep=5),
        truncated({"ret": 0, "msgs": []}, keep=5, then=Then.RESET),
        answer("x" * 1001),
        Step(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", Then.CLOSE),
    ],
    ids=["close", "reset", "half a head", "no http", "half a body", "reset in the body", "too long", "bad chunk"],
)
async def test_b028_every_broken_answer_is_one_transient_failure(step: Step) -> None:
    error = await outcome(step)

    assert isinstance(error, Unavailable)
    assert not isinstance(error, Silent)
    assert SECRET not in str(error)


async def test_a_body_that_stalls_is_a_failure_and_no_silence() -> None:
    error = await outcome(truncated({"ret": 0}, keep=3, then=Then.HANG), body_s=0.2)

    assert isinstance(error, Unavailable)
    assert not isinstance(error, Silent)


async def test_a_server_that_is_not_there_is_no_silence_either() -> None:
    async with ScriptedHttp({}) as server:
        gone = server.url
    client = http(gone)

    with pytest.raises(Unavailable, match=r"probe: ConnectError.*\(127\.0\.0\.1\)") as raised:
        await ask(client, gone)

    assert not isinstance(raised.value, Silent)
    await client.aclose()


async def test_a_redirect_is_handed_back_and_not_followed() -> None:
    async with ScriptedHttp({"elsewhere": [answer("stolen")]}) as other:
        read = await outcome(answer("", status=307, headers={"Location": f"{other.url}/elsewhere"}))

    assert isinstance(read, Answer)
    assert read.status == 307
    assert other.requests == []


async def test_b007_a_pool_that_gives_no_connection_away_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wechat_http, "POOL_S", 0.2)
    async with ScriptedHttp({"probe": [HANG, answer("first"), answer("second")]}) as server:
        client = http(server.url)
        async with asyncio.TaskGroup() as group:
            stuck = group.create_task(ask(client, server.url, silence_s=60.0), name="holds the only connection")
            await server.until_asked("probe")
            with pytest.raises(Unavailable, match="no free connection"):
                await ask(client, server.url)
            read = await ask(client, server.url)
            stuck.cancel()
        again = await ask(client, server.url)
        await client.aclose()

    assert (read.body, again.body) == (b"first", b"second")
    assert client.pools == 2


async def test_b100_many_lost_connections_leave_neither_sockets_nor_tasks() -> None:
    async with ScriptedHttp({"probe": [CLOSE] * 100 + [answer("ok")]}) as server:
        client = http(server.url)
        tasks = len(asyncio.all_tasks())
        for _ in range(100):
            with pytest.raises(Unavailable):
                await ask(client, server.url)
        read = await ask(client, server.url)
        left = len(asyncio.all_tasks()) - tasks
        await client.aclose()

    assert read.body == b"ok"
    assert client.pools == 1
    assert left <= 2


async def test_b069_a_dead_proxy_is_named_without_its_password() -> None:
    async with ScriptedHttp({}) as server:
        proxy = f"http://name:{SECRET}@127.0.0.1:{server.port}"
    client = http("http://wechat.invalid", proxy=proxy)

    with pytest.raises(Unavailable, match=r"\(proxy http://127\.0\.0\.1:\d+\)") as raised:
        await ask(client, "http://wechat.invalid")

    assert SECRET not in str(raised.value)
    await client.aclose()


async def test_b069_a_proxy_of_a_kind_we_cannot_speak_is_an_error_that_names_it() -> None:
    client = http("http://wechat.invalid", proxy="socks5://127.0.0.1:9")

    with pytest.raises(Unavailable, match="socks5://127.0.0.1:9 cannot be used"):
        await ask(client, "http://wechat.invalid")


async def test_b069_loopback_is_never_proxied_and_the_environment_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    async with ScriptedHttp({"probe": [answer("direct")]}) as server:
        client = http(server.url, proxy="http://127.0.0.1:9")
        read = await ask(client, server.url)
        await client.aclose()

    assert read.body == b"direct"


async def test_a_proxy_is_used_for_every_other_host() -> None:
    async with ScriptedHttp({"probe": [answer("by proxy")]}) as proxy:
        client = http("http://wechat.invalid", proxy=proxy.url)
        read = await ask(client, "http://wechat.invalid")
        await client.aclose()

    assert read.body == b"by proxy"
    assert proxy.requests[0].target.startswith("http://wechat.invalid/probe")


async def test_no_cookie_is_kept() -> None:
    async with ScriptedHttp({"probe": [answer("", headers={"Set-Cookie": "track=1"}), answer("")]}) as server:
        client = http(server.url)
        await ask(client, server.url)
        await ask(client, server.url)
        await client.aclose()

    assert "cookie" not in server.requests[1].headers


async def test_b060_the_most_verbose_log_holds_no_secret(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    await outcome(answer("{}"))
    await outcome(CLOSE)

    assert SECRET not in caplog.text


async def test_a_header_that_cannot_be_sent_is_an_error_without_its_value() -> None:
    async with ScriptedHttp({}) as server:
        client = http(server.url)
        with pytest.raises(Unavailable) as raised:
            await client.ask(
                "probe", "POST", f"{server.url}/probe", headers={"Authorization": f"{SECRET}\nx"}, silence_s=5.0
            )
        await client.aclose()

    assert SECRET not in str(raised.value)
    assert raised.value.__suppress_context__


async def test_a_head_that_drips_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wechat_http, "CONNECT_S", 0.2)
    monkeypatch.setattr(wechat_http, "POOL_S", 0.2)
    began = time.monotonic()

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            for letter in b"HTTP/1.1 200 OK\r\nX-Slow: " + b"a" * 600:
                writer.write(bytes([letter]))
                await writer.drain()
                await asyncio.sleep(0.05)
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(drip, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    client = http(url)
    with pytest.raises(Unavailable, match="no complete answer head") as raised:
        await ask(client, url, silence_s=0.4)
    await client.aclose()
    server.close()

    assert not isinstance(raised.value, Silent)
    assert time.monotonic() - began < 15.0
