"""An agent program as a process, tried with a shell."""

import asyncio
import time
from dataclasses import replace
from pathlib import Path

import pytest

from protocol.errors import FailureKind
from tests.fakes.hosts import run, spec_in
from worker.hosts.base import HostError
from worker.hosts.program import TAIL_BYTES, AgentProgram


async def started(tmp_path: Path, script: str) -> AgentProgram:
    return await AgentProgram.start(replace(spec_in(tmp_path), command=("/bin/sh", "-c", script)))


def test_it_runs_in_the_workspace_with_only_the_environment_of_its_spec(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRIDGE_SECRET", "x")

    async def scenario() -> None:
        spec = replace(spec_in(tmp_path), command=("/bin/sh", "-c", "pwd; env"), env=(("KEY", "value"),))
        program = await AgentProgram.start(spec)
        said = (await program.stdout.read()).decode().split()

        assert said[0] == str(spec.workspace)
        assert "KEY=value" in said and f"TMPDIR={spec.session_dir / 'tmp'}" in said
        assert not any("BRIDGE" in word for word in said)
        program.discard()

    run(scenario())


def test_its_death_is_told_with_code_and_only_the_last_of_its_words(tmp_path: Path) -> None:
    async def scenario() -> None:
        program = await started(tmp_path, "seq 1 60000 >&2; echo the end >&2; exit 3")
        await program.read_stderr()

        told = await program.obituary()

        assert told.startswith("exit code 3") and told.endswith("the end")
        assert program._tail_bytes < 2 * TAIL_BYTES + 1
        program.discard()

    run(scenario())


def test_a_program_that_ignores_every_wish_is_dead_within_its_times(tmp_path: Path) -> None:
    async def scenario() -> None:
        program = await started(tmp_path, "trap '' TERM; echo ready; while :; do sleep 1; done")
        await program.stdout.readline()
        before = time.monotonic()

        await program.end(0.2)

        await program.exited()
        assert time.monotonic() - before < 5.0
        program.discard()

    run(scenario())


def test_the_end_of_its_input_is_an_orderly_close(tmp_path: Path) -> None:
    async def scenario() -> None:
        program = await started(tmp_path, "cat > cleaned; echo bye >&2")
        reading = asyncio.ensure_future(program.read_stderr())

        await program.close()

        assert (tmp_path / "workspace" / "cleaned").exists()
        await reading
        await program.close()

    run(scenario())


def test_its_whole_group_goes_with_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        program = await started(tmp_path, "sleep 60 & echo $!; exit 0")
        child = int(await program.stdout.readline())
        await program.exited()

        program.kill()

        await program.stdout.read()  # the child held the stream; its end is the child's end
        assert "sleep" not in _command(child)
        program.discard()

    run(scenario())


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def test_what_cannot_be_started_is_a_setting_to_mend(tmp_path: Path) -> None:
    async def scenario() -> None:
        with pytest.raises(HostError) as caught:
            await AgentProgram.start(replace(spec_in(tmp_path), command=("/nowhere/agent",)))

        assert caught.value.kind is FailureKind.NOT_CONFIGURED
        assert "/nowhere" not in caught.value.detail

    run(scenario())
