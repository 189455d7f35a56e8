"""hooks: real programs are run, with JSON on stdin, bounded in time, and nothing of them is left."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from supervisor import hooks
from supervisor.clock import SystemClock
from supervisor.core.hooks import Hook
from supervisor.core.states import EventRecord
from supervisor.hooks import HookRunner
from tests.fakes.workers import until


def expired(account: str = "me@im.wechat") -> EventRecord:
    return EventRecord(0, 0.0, "account_expired", account, None, None, '{"n": 1}')


def writes(file: Path) -> list[str]:
    """A program that puts its stdin down, whole: moved into place once it is written."""
    code = f"import os, sys; open({f'{file}.new'!r}, 'a').write(sys.stdin.read()); os.rename({f'{file}.new'!r}, {str(file)!r})"
    return [sys.executable, "-c", code]


async def run(commands: dict[Hook, list[str]], events: list[EventRecord], done: Path) -> None:
    runner = HookRunner(
        lambda hook: commands.get(hook, []), lambda account: f"bot-of-{account}", {"NOTIFY_SOCKET": "/n"}, SystemClock()
    )
    running = asyncio.ensure_future(runner.run())
    try:
        for event in events:
            runner.hear(event)
        await until(done.exists)
    finally:
        running.cancel()
        await asyncio.wait([running])


def test_a_hook_hears_of_the_event_as_json(tmp_path: Path) -> None:
    asyncio.run(run({Hook.EXPIRED: writes(tmp_path / "said")}, [expired()], tmp_path / "said"))

    said: dict[str, Any] = json.loads((tmp_path / "said").read_text())
    assert said == {
        "hook": "on_expired",
        "event": "account_expired",
        "at": "1970-01-01T00:00:00.000Z",
        "account": "bot-of-me@im.wechat",
        "peer": None,
        "message_id": None,
        "data": {"n": 1},
    }


def test_the_service_managers_socket_is_not_handed_on(tmp_path: Path) -> None:
    code = f"import os; open({str(tmp_path / 'env')!r}, 'w').write(','.join(os.environ))"

    asyncio.run(run({Hook.EXPIRED: [sys.executable, "-c", code]}, [expired()], tmp_path / "env"))

    assert "NOTIFY_SOCKET" not in (tmp_path / "env").read_text()


def test_a_hook_that_is_not_there_or_fails_is_named_and_the_next_one_runs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    commands = {
        Hook.EXPIRED: ["/nonexistent/hook"],
        Hook.CRASH_LOOP: [sys.executable, "-c", "raise SystemExit(3)"],
        Hook.DEAD_LETTER: writes(tmp_path / "said"),
    }
    events = [
        expired(),
        EventRecord(0, 0.0, "crash_loop_began", None, None, None, "{}"),
        EventRecord(0, 0.0, "message_dead", None, None, None, "{}"),
    ]

    asyncio.run(run(commands, events, tmp_path / "said"))

    told = [record.getMessage() for record in caplog.records if "hook_failed" in record.getMessage()]
    assert told == [
        "hook_failed hook=on_expired reason=No such file or directory",
        "hook_failed hook=on_crash_loop reason=exit code 3",
    ]


def test_a_hook_that_hangs_is_ended_with_all_that_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(hooks, "HOOK_S", 1.0)
    code = (
        "import os, time; pid = os.fork()\n"
        f"open({str(tmp_path / 'pids')!r} + str(os.getpid()), 'w').close(); time.sleep(600)"
    )
    commands = {Hook.EXPIRED: [sys.executable, "-c", code], Hook.DEAD_LETTER: writes(tmp_path / "said")}
    events = [expired(), EventRecord(0, 0.0, "message_dead", None, None, None, "{}")]

    asyncio.run(run(commands, events, tmp_path / "said"))

    pids = [int(file.name.removeprefix("pids")) for file in tmp_path.glob("pids*")]
    assert len(pids) == 2
    alive = [pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE]
    assert not alive
    assert "hook_failed hook=on_expired reason=not done after 1 s" in caplog.text
