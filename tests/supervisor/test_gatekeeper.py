"""supervisor/gatekeeper.py: one gateway for all workers, another when it dies, none that is left behind."""

import asyncio
import logging
import os
import signal
from pathlib import Path

import psutil
import pytest

from supervisor.core.policy import Agent
from tests.fakes.gateways import KEY, chat, client, gate, lease
from tests.fakes.model import FakeModel
from tests.fakes.workers import in_a_loop


def openai(model: FakeModel) -> Agent:
    return Agent(model="openai-compatible:fake-1", base_url=f"{model.url}/v1", api_key_env="MODEL_KEY")


@in_a_loop
async def test_nothing_runs_until_a_worker_needs_it_and_one_serves_all(tmp_path: Path) -> None:
    async with gate(tmp_path, {}) as gateway:
        assert gateway.keeper.pid is None
        first = gateway.admit(Agent())
        pid = gateway.keeper.pid
        second = gateway.admit(Agent(), lease("bob"))

        assert pid is not None and gateway.keeper.pid == pid
        assert first.port == second.port > 1024
        assert first.token != second.token and len(first.token) > 40


@in_a_loop
async def test_after_a_gateways_death_workers_go_on_with_their_port_and_token(tmp_path: Path) -> None:
    with FakeModel() as model:
        async with gate(tmp_path) as gateway:
            admission = gateway.admit(openai(model), tokens=100_000)
            for _ in range(2):
                async with client(admission) as worker:
                    assert (await worker.post("/v1/chat/completions", json=chat("hello"))).status_code == 200
                    pid = gateway.keeper.pid
                    assert pid is not None
                    os.kill(pid, signal.SIGKILL)
                async with client(admission) as worker:  # waits in the listener's queue until the next one serves
                    assert (await worker.post("/v1/chat/completions", json=chat("hello"))).status_code == 200
                assert gateway.keeper.pid not in (None, pid)
            assert gateway.keeper.problems() == []
            await gateway.used(4 * 1010)


@in_a_loop
async def test_a_gateway_that_is_down_is_a_problem_that_is_named(tmp_path: Path) -> None:
    async with gate(tmp_path, {}) as gateway:
        gateway.admit(Agent())
        await gateway.keeper.serving()
        pid = gateway.keeper.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        async with asyncio.timeout(30):
            while not gateway.keeper.problems():  # noqa: ASYNC110 - the end of a process comes by no event of ours
                await asyncio.sleep(0.001)
        assert "model gateway" in gateway.keeper.problems()[0]
        await gateway.keeper.serving()

        assert gateway.keeper.problems() == []


@in_a_loop
async def test_a_worker_has_the_proxy_only_where_its_peer_has_the_network(tmp_path: Path) -> None:
    async with gate(tmp_path, {}) as gateway:
        without, having = gateway.admit(Agent()), gateway.admit(Agent(), lease("bob"), network=True)

        assert without.proxy_url == ""
        assert having.proxy_url == f"http://worker:{having.token}@127.0.0.1:{having.port}"
        assert having.token not in repr(having)


@in_a_loop
async def test_the_key_stands_in_no_log_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with FakeModel() as model:
        async with gate(tmp_path) as gateway:
            admission = gateway.admit(openai(model))
            async with client(admission) as worker:
                for text in ("hello", "FAIL 401", "FAIL 500", "LEAK"):
                    await worker.post("/v1/chat/completions", json=chat(text))
            await gateway.used(2020)

    assert "model_call " in caplog.text and "model_call_failed" in caplog.text
    assert KEY not in caplog.text
    supervisors = [record.getMessage() for record in caplog.records if record.name.startswith("supervisor")]
    assert not any(admission.token in line for line in supervisors)


@in_a_loop
async def test_closing_leaves_no_process_and_no_port(tmp_path: Path) -> None:
    async with gate(tmp_path, {}) as gateway:
        admission = gateway.admit(Agent())
        pid = gateway.keeper.pid
        await gateway.keeper.close()
        await gateway.keeper.close()

        assert not psutil.pid_exists(pid)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", admission.port)
