"""The host of a trial. What its attempts come to is in tests/attacks/test_trial.py; here, how it tells."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from protocol import agents
from protocol.content import Access, Prompt
from protocol.probe import PROBE_HOST, REPORT, WORKED, Attempt, Targets, reported
from protocol.to_supervisor import TurnOutcome
from worker import hosts
from worker.hosts.base import AgentRemarked, SessionSpec, TurnEnded


def targets(folder: Path) -> Targets:
    (folder / "journal").touch()
    return Targets(str(folder / "journal"), str(folder / "no"), str(folder / "no"), str(folder), str(folder), 1, 1)


async def events(folder: Path, text: str) -> list[object]:
    session = hosts.make(PROBE_HOST)
    await session.open(SessionSpec(folder, folder, None, Access.CHAT))
    found = [event async for event in session.turn(Prompt(text))]
    await session.close()
    return found


def test_each_attempt_is_told_by_name_with_its_end_and_the_turn_completes(tmp_path: Path) -> None:
    text = msgspec.json.encode(targets(tmp_path)).decode()

    *told, end = asyncio.run(events(tmp_path, text))

    assert all(isinstance(one, AgentRemarked) and one.level == REPORT for one in told)
    ends = dict(pair for one in told if isinstance(one, AgentRemarked) for pair in reported(one.text))
    assert list(ends) == list(Attempt)
    assert ends[Attempt.READ_JOURNAL] == WORKED  # nothing stops us here
    assert ends[Attempt.READ_OTHER_PEER] == "ENOENT"
    assert end == TurnEnded(TurnOutcome.COMPLETED)


def test_a_prompt_that_names_no_targets_fails_the_turn(tmp_path: Path) -> None:
    (end,) = asyncio.run(events(tmp_path, "hello"))

    assert isinstance(end, TurnEnded)
    assert end.outcome is TurnOutcome.FAILED


def test_no_setting_can_name_it_and_no_zygote_preloads_it() -> None:
    assert PROBE_HOST not in agents.HOSTS
    assert PROBE_HOST not in hosts.HOSTS
    with pytest.raises(KeyError):
        hosts.preload(PROBE_HOST)
