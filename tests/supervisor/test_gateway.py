"""supervisor/gateway.py: the real process, between a worker's calls and a model server on loopback."""

import asyncio
import json
import os
import re
import socket
from pathlib import Path

import httpx
import psutil
import pytest

from supervisor.core.gateway import CALLS_PER_WORKER
from supervisor.core.policy import Agent
from supervisor.gateway import _tcp
from tests.fakes.gateways import KEY, chat, client, gate, lease
from tests.fakes.model import FakeModel
from tests.fakes.workers import in_a_loop


def openai(model: FakeModel) -> Agent:
    return Agent(model="openai-compatible:fake-1", base_url=f"{model.url}/v1", api_key_env="MODEL_KEY")


def anthropic(model: FakeModel) -> Agent:
    return Agent(model="anthropic:fake-1", base_url=model.url, api_key_env="MODEL_KEY")


def google(model: FakeModel) -> Agent:
    return Agent(model="google:fake-1", base_url=model.url, api_key_env="MODEL_KEY")


MESSAGES = [{"role": "user", "content": "hello"}]
CONTENTS = [{"role": "user", "parts": [{"text": "hello"}]}]
CALLS = {
    "chat": (openai, "/v1/chat/completions", {"messages": MESSAGES, "stream": True}, "authorization"),
    "chat in one piece": (openai, "/v1/chat/completions", {"messages": MESSAGES}, "authorization"),
    "responses": (openai, "/v1/responses", {"input": "hello", "stream": True}, "authorization"),
    "messages": (anthropic, "/v1/messages?beta=true", {"messages": MESSAGES, "stream": True}, "x-api-key"),
    "messages in one piece": (anthropic, "/v1/messages", {"messages": MESSAGES}, "x-api-key"),
    "google": (google, "/v1beta/models/m:streamGenerateContent?alt=sse&key=x", {"contents": CONTENTS}, "x-goog-api-key"),
    "google in one piece": (google, "/v1beta/models/m:generateContent", {"contents": CONTENTS}, "x-goog-api-key"),
}  # fmt: skip


@in_a_loop
async def test_each_dialect_gets_through_with_the_key_and_is_counted(tmp_path: Path) -> None:
    async with gate(tmp_path) as gateway:
        for generation, (name, (agent, path, body, header)) in enumerate(CALLS.items(), 1):
            with FakeModel() as model:
                admission = gateway.admit(agent(model), lease(generation=generation))
                headers = {header: f"Bearer {admission.token}" if header == "authorization" else admission.token}
                async with httpx.AsyncClient(base_url=admission.url, trust_env=False, timeout=30) as worker:
                    answer = await worker.post(path, json={"model": "m", **body}, headers=headers)
                await gateway.used(generation * 1010)

                assert answer.status_code == 200, name
                assert "hello" in answer.text and "ECHO" in answer.text, name
                (seen,) = model.seen
                assert seen.key == KEY, name
                assert admission.token not in json.dumps([seen.path, seen.headers, seen.body])
                assert "key=" not in seen.path
                assert "set-cookie" not in answer.headers and answer.headers.get("x-request-id") in ("r1", None)


@in_a_loop
async def test_words_of_a_stream_arrive_while_the_model_still_speaks(tmp_path: Path) -> None:
    with FakeModel() as model:
        async with (
            gate(tmp_path) as gateway,
            client(gateway.admit(openai(model))) as worker,
            worker.stream("POST", "/v1/chat/completions", json=chat("SLOW 1000")) as answer,
        ):
            lines = answer.aiter_lines()
            while "s3 " not in await anext(lines):
                pass
            model.release()  # without it the other 996 would take a minute
            rest = [line async for line in lines if line]

    assert any("s999 " in line for line in rest)
    assert rest[-1] == "data: [DONE]"


@in_a_loop
async def test_the_upstream_request_stops_when_the_worker_goes_away(tmp_path: Path) -> None:
    with FakeModel() as model:
        async with gate(tmp_path) as gateway, client(gateway.admit(openai(model))) as worker:
            async with worker.stream("POST", "/v1/chat/completions", json=chat("SLOW 100000")) as answer:
                async for line in answer.aiter_lines():
                    if "s2 " in line:
                        break
            await asyncio.to_thread(model.wait, broke_off=1)
            async with asyncio.timeout(30):
                while (used := await gateway.usage.used(lease().who)) == 0:  # noqa: ASYNC110 - booked by another task
                    await asyncio.sleep(0.005)

    assert 4 <= used < 500  # an estimate of what it had asked and got: hanging up early is not free


@in_a_loop
async def test_a_worker_that_leaves_before_the_first_word_stops_the_request_too(tmp_path: Path) -> None:
    async def never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        asked.set()
        while await reader.read(4096):
            pass
        ended.set()
        writer.close()

    asked, ended = asyncio.Event(), asyncio.Event()
    server = await asyncio.start_server(never, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with gate(tmp_path) as gateway, asyncio.timeout(30):
        agent = Agent(model="openai-compatible:m", base_url=f"http://127.0.0.1:{port}/v1")
        async with client(gateway.admit(agent)) as worker:
            call = asyncio.ensure_future(worker.post("/v1/chat/completions", json=chat("hello")))
            await asked.wait()
            call.cancel()
            await ended.wait()
    server.close()


@in_a_loop
async def test_a_token_is_good_for_its_own_generation_and_nothing_else_is_a_token(tmp_path: Path) -> None:
    with FakeModel() as model:
        async with gate(tmp_path) as gateway:
            first = gateway.admit(openai(model), lease(generation=1))
            others = gateway.admit(openai(model), lease("bob"))
            second = gateway.admit(openai(model), lease(generation=2))
            statuses = []
            for token in (
                first.token,
                second.token,
                others.token,
                "-",
                "x",
                KEY,
                second.token[:-1],
                second.token + "x",
            ):
                async with httpx.AsyncClient(base_url=second.url, trust_env=False, timeout=30) as worker:
                    headers = {"authorization": f"Bearer {token}"}
                    statuses.append(
                        (await worker.post("/v1/chat/completions", json=chat("x"), headers=headers)).status_code
                    )
            gateway.keeper.revoke(lease(generation=1))  # late
            gateway.keeper.revoke(lease(generation=2))
            async with client(second) as worker:
                after = await worker.get("/v1/models")

    assert statuses == [401, 200, 200, 401, 401, 401, 401, 401]
    assert after.status_code == 401
    assert len(model.seen) == 2


@in_a_loop
async def test_whoever_speaks_first_the_token_is_known(tmp_path: Path) -> None:
    """A worker may call before the gateway's loop has come round to the news of its token."""
    with FakeModel() as model:
        async with gate(tmp_path) as gateway:
            for number in range(20):
                async with client(gateway.admit(openai(model), lease(generation=number + 1))) as worker:
                    assert (await worker.get("/v1/models")).status_code == 200


@in_a_loop
async def test_without_a_model_the_gateway_says_so_and_goes_nowhere(tmp_path: Path) -> None:
    async with gate(tmp_path, {}) as gateway:
        for agent in (Agent(), Agent(model="openai:m", api_key_env="MODEL_KEY")):
            async with client(gateway.admit(agent)) as worker:
                answer = await worker.post("/v1/chat/completions", json=chat("hello"))

                assert answer.status_code == 403
                assert answer.json()["error"]["message"].startswith("not configured")
                assert "MODEL_KEY" not in answer.text  # what an agent reads, its peer may read
        assert gateway.connects == []
        assert any("MODEL_KEY" in line for line in gateway.keeper.problems())


@in_a_loop
async def test_the_gateway_connects_to_the_model_server_of_the_settings_and_to_nothing_else(tmp_path: Path) -> None:
    with FakeModel() as model, FakeModel() as other:
        async with gate(tmp_path) as gateway, client(gateway.admit(openai(model))) as worker:
            await worker.post("/v1/chat/completions", json=chat("hello"))
            for path in (
                f"//127.0.0.1:{other.port}/v1/models",
                f"/v1/chat/completions?base_url={other.url}",
                "/v1/models",
            ):
                await worker.request(
                    "POST" if "chat" in path else "GET", path, json=chat("x") if "chat" in path else None
                )
            await worker.get("/v1/models", headers={"host": f"127.0.0.1:{other.port}", "x-forwarded-host": "x"})
            connects = gateway.connects

    assert set(connects) == {("127.0.0.1", model.port)}
    assert other.seen == []


@in_a_loop
async def test_the_key_never_comes_back_whatever_the_model_server_does(tmp_path: Path) -> None:
    answers = []
    with FakeModel() as model:
        async with gate(tmp_path) as gateway:
            for agent in (openai(model), anthropic(model), google(model)):
                async with client(gateway.admit(agent)) as worker:
                    for text in ("LEAK", "FAIL 400", "FAIL 401", "FAIL 403", "FAIL 429", "FAIL 500", "FAIL 302"):
                        for stream in (True, False):
                            answers.append(await worker.post("/v1/chat/completions", json=chat(text, stream=stream)))
                            answers.append(await worker.post("/v1/messages", json=chat(text, stream=stream)))
                    contents = {"contents": [{"role": "user", "parts": [{"text": "LEAK"}]}]}
                    answers.append(await worker.post("/v1beta/models/m:streamGenerateContent", json=contents))

    assert len(model.seen) == 29 and all(seen.key == KEY for seen in model.seen)
    assert any("[key]" in answer.text for answer in answers)
    assert all(KEY not in answer.text and KEY not in str(answer.headers) for answer in answers)
    assert not any(answer.status_code in (401, 302) for answer in answers)


@in_a_loop
async def test_a_refused_key_is_the_operators_problem_and_named_so(tmp_path: Path) -> None:
    with FakeModel() as model:
        async with gate(tmp_path) as gateway, client(gateway.admit(openai(model))) as worker:
            answer = await worker.post("/v1/chat/completions", json=chat("FAIL 401"))
            problems = gateway.keeper.problems()
            await worker.post("/v1/chat/completions", json=chat("hello"))
            await gateway.used(1010)
            mended = gateway.keeper.problems()

    assert answer.status_code == 403 and "refuses the key" in answer.json()["error"]["message"]
    assert any("401" in line for line in problems)
    assert mended == []


@in_a_loop
async def test_an_error_of_the_model_server_is_passed_on_with_its_advice(tmp_path: Path) -> None:
    with FakeModel() as model:
        async with gate(tmp_path) as gateway, client(gateway.admit(openai(model))) as worker:
            answer = await worker.post("/v1/chat/completions", json=chat("FAIL 429"))

            assert answer.status_code == 429 and "scripted" in answer.text
            assert await gateway.usage.used(lease().who) == 0


@in_a_loop
async def test_a_model_server_that_is_away_or_breaks_off_is_no_whole_answer(tmp_path: Path) -> None:
    async def breaks_off(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n5\r\ndata:\r\n"
        )
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(breaks_off, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with socket.create_server(("127.0.0.1", 0)) as free:
        nobody = free.getsockname()[1]
    async with gate(tmp_path) as gateway:
        away = Agent(model="openai-compatible:m", base_url=f"http://127.0.0.1:{nobody}/v1")
        async with client(gateway.admit(away)) as worker:
            answer = await worker.post("/v1/chat/completions", json=chat("hello"))
        assert answer.status_code == 502 and "reached" in answer.json()["error"]["message"]
        breaking = Agent(model="openai-compatible:m", base_url=f"http://127.0.0.1:{port}/v1")
        async with client(gateway.admit(breaking)) as worker:
            with pytest.raises(httpx.TransportError):
                await worker.post("/v1/chat/completions", json=chat("hello"))
    server.close()


@in_a_loop
async def test_a_day_without_tokens_left_ends_in_a_refusal_that_nobody_retries(tmp_path: Path) -> None:
    with FakeModel() as model:
        model.usage = (900, 200)
        async with gate(tmp_path) as gateway:
            async with client(gateway.admit(openai(model), tokens=2500)) as worker:
                answers = [await worker.post("/v1/chat/completions", json=chat("hello")) for _ in range(4)]
            await gateway.used(3300)
            bob = gateway.admit(openai(model), lease("bob"), tokens=2500)
            async with client(bob) as worker:
                bobs = await worker.post("/v1/chat/completions", json=chat("hello"))
            again = gateway.admit(openai(model), lease(generation=2), tokens=2500)
            async with client(again) as worker:
                later = await worker.post("/v1/messages/count_tokens", json=chat("hello"))
                refused = await worker.post("/v1/chat/completions", json=chat("hello"))
            over = list(gateway.over)

    assert [answer.status_code for answer in answers] == [200, 200, 200, 403]
    assert answers[3].json()["error"]["type"] == "permission_error"
    assert bobs.status_code == 200
    assert later.status_code == 404  # another dialect's call
    assert refused.status_code == 403  # a new worker is no new day
    assert over == [lease(), lease(generation=2)]


@in_a_loop
async def test_an_unlimited_peer_is_counted_and_never_asked(tmp_path: Path) -> None:
    with FakeModel() as model:
        model.usage = (500_000, 0)
        async with gate(tmp_path) as gateway, client(gateway.admit(openai(model))) as worker:
            for _ in range(3):
                assert (await worker.post("/v1/chat/completions", json=chat("hello"))).status_code == 200
            await gateway.used(1_500_000)

            assert gateway.over == []


@in_a_loop
async def test_one_worker_may_ask_a_few_things_at_once_and_its_flood_stops_nobody_else(tmp_path: Path) -> None:
    with FakeModel() as model:
        async with gate(tmp_path) as gateway:
            flooding, other = gateway.admit(openai(model)), gateway.admit(openai(model), lease("bob"))
            async with client(flooding) as worker, client(other) as bob, asyncio.TaskGroup() as tasks:
                held = [
                    tasks.create_task(worker.post("/v1/chat/completions", json=chat("SLOW 100000")))
                    for _ in range(CALLS_PER_WORKER)
                ]
                await asyncio.to_thread(model.wait, seen=CALLS_PER_WORKER)
                one_more = await worker.post("/v1/chat/completions", json=chat("hello"))
                bobs = await bob.post("/v1/chat/completions", json=chat("hello"))
                for call in held:
                    call.cancel()

    assert one_more.status_code == 429 and "running already" in one_more.json()["error"]["message"]
    assert bobs.status_code == 200


ODD = (
    ("POST", "/v1/chat/completions", b"not json", 400),
    ("POST", "/v1/chat/completions", b"[1]", 400),
    ("POST", "/v1/chat/completions", b"\xff" * 100, 400),
    ("POST", "/v1/chat/completions", b"[" * 100_000, 400),
    ("POST", "/v1/messages", b"{}", 404),
    ("GET", "/v1/files", b"", 404),
    ("DELETE", "/v1/models", b"", 404),
    ("POST", "/v1/chat/completions", b" " * (33 * 1024 * 1024), 413),
)


@in_a_loop
async def test_odd_requests_get_an_answer_and_go_nowhere(tmp_path: Path) -> None:
    with FakeModel() as model:
        async with gate(tmp_path) as gateway, client(gateway.admit(openai(model))) as worker:
            for method, path, content, status in ODD:
                answer = await worker.request(method, path, content=content)

                assert answer.status_code == status and "error" in answer.json(), (method, path, content[:20])
            assert (await worker.get("/v1/models")).status_code == 200

    assert len(model.seen) == 1


@in_a_loop
async def test_somebody_may_ask_whether_anybody_is_there(tmp_path: Path) -> None:
    async with gate(tmp_path, {}) as gateway:
        admission = gateway.admit(Agent())
        async with httpx.AsyncClient(base_url=admission.url, trust_env=False, timeout=30) as worker:
            assert (await worker.head("/")).status_code == 200


@in_a_loop
async def test_the_key_is_in_no_argument_and_no_environment_and_the_process_cannot_be_read(tmp_path: Path) -> None:
    with FakeModel() as model:
        async with gate(tmp_path) as gateway, client(gateway.admit(openai(model))) as worker:
            assert (await worker.get("/v1/models")).status_code == 200
            pid = gateway.keeper.pid
            assert pid is not None
            shown = {name: _read(f"/proc/{pid}/{name}") for name in ("cmdline", "environ", "limits")}
            owner = os.stat(f"/proc/{pid}/mem").st_uid

    assert not any(KEY in text for text in shown.values())
    assert owner == 0  # of a process that is not dumpable, whoever runs it
    assert re.search(r"Max core file size\s+0 ", shown["limits"])


def _read(path: str) -> str:
    """What /proc shows us; nothing where it refuses."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except PermissionError:
        return ""


@in_a_loop
async def test_the_kernel_does_not_hold_small_pieces_back(tmp_path: Path) -> None:
    """Without TCP_NODELAY each small piece but the first would come 40 ms late; asyncio sets it by the protocol's number."""
    async with gate(tmp_path, {}) as gateway:
        gateway.admit(Agent())
        await gateway.keeper.serving()
        listener = gateway.keeper._listener
        assert listener is not None

        with _tcp(os.dup(listener.fileno())) as taken_over:
            assert listener.proto == taken_over.proto == socket.IPPROTO_TCP


@in_a_loop
async def test_the_gateway_ends_with_the_end_of_its_channel(tmp_path: Path) -> None:
    async with gate(tmp_path, {}) as gateway:
        gateway.admit(Agent())
        await gateway.keeper.serving()
        process = psutil.Process(gateway.keeper.pid)
    assert not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
