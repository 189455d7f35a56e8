"""audit: a chain that shows every change, survives a crash and a full disk, and holds no content."""

import asyncio
import json
import resource
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from supervisor import audit
from supervisor.audit import FIRST, AuditLog, verify
from supervisor.clock import SystemClock
from supervisor.core.states import EventRecord
from tests.fakes.workers import until


def event(name: str = "turn_started", peer: str = "alice") -> EventRecord:
    return EventRecord(0, 0.0, name, "me", peer, "7", '{"generation": 1}')


def written(path: Path, *events: EventRecord) -> Path:
    """A bridge's life in which these happened."""

    async def life() -> None:
        trail = AuditLog(path, SystemClock())
        running = asyncio.ensure_future(trail.run())
        await asyncio.sleep(0)  # it runs before it is cancelled
        for one in events:
            trail.hear(one)
        running.cancel()
        await asyncio.wait([running])

    asyncio.run(life())
    return path


@pytest.fixture
def chain(tmp_path: Path) -> Path:
    return written(tmp_path / "audit.jsonl", *(event(peer=f"p{n}") for n in range(5)))


def test_an_untouched_chain_is_whole_over_restarts(chain: Path) -> None:
    before = verify(chain)
    written(chain, event())

    after = verify(chain)
    assert (before.lines, before.broken_at, after.lines, after.broken_at) == (5, None, 6, None)
    assert json.loads(chain.read_bytes().splitlines()[5])["prev"] == before.last
    assert stat.S_IMODE(chain.stat().st_mode) == 0o600


def test_no_chain_at_all_is_an_empty_one(tmp_path: Path) -> None:
    assert verify(tmp_path / "absent") == audit.Verdict(0, FIRST, None)


def changed(line: bytes) -> bytes:
    return line.replace(b'"p2"', b'"px"')


@pytest.mark.parametrize(
    ("change", "broken_at", "reason"),
    [
        (lambda lines: [*lines[:2], changed(lines[2]), *lines[3:]], 3, "was changed"),
        (lambda lines: [*lines[:2], *lines[3:]], 3, "does not follow"),
        (lambda lines: lines[1:], 1, "does not follow"),
        (lambda lines: [lines[0], lines[0], *lines[1:]], 2, "does not follow"),
        (lambda lines: [lines[1], lines[0], *lines[2:]], 1, "does not follow"),
        (lambda lines: [*lines[:4], b"junk\n", lines[4]], 5, "no line of this log"),
        (lambda lines: [*lines[:4], b"[]\n", lines[4]], 5, "no line of this log"),
        (lambda lines: [*lines[:4], lines[4][:-1]], 5, "ends in the middle"),
    ],
)
def test_every_change_is_found_where_it_is(
    chain: Path, change: Callable[[list[bytes]], list[bytes]], broken_at: int, reason: str
) -> None:
    chain.write_bytes(b"".join(change(chain.read_bytes().splitlines(keepends=True))))

    found = verify(chain)

    assert found.broken_at == broken_at
    assert found.lines == broken_at - 1
    assert reason in found.reason


@pytest.mark.parametrize("kept", [1, 40, -1])
def test_a_line_torn_by_a_crash_is_cut_off_and_said(chain: Path, kept: int) -> None:
    whole = chain.read_bytes()
    last = whole.splitlines(keepends=True)[-1]
    chain.write_bytes(whole[: -len(last)] + last[:kept])

    written(chain, event())

    lines = [json.loads(line) for line in chain.read_bytes().splitlines()]
    assert verify(chain).broken_at is None
    assert [line["event"] for line in lines[4:]] == ["audit_mended", "turn_started"]
    assert lines[4]["data"]["bytes"] == len(last[:kept])


def test_what_the_disk_refuses_is_written_whole_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(audit, "RETRY_S", 0.01)
    path = tmp_path / "audit.jsonl"

    async def scenario() -> None:
        trail = AuditLog(path, SystemClock())
        running = asyncio.ensure_future(trail.run())
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))  # less than a line
        try:
            trail.hear(event())
            await until(lambda: "audit_unwritable" in caplog.text)
            assert path.stat().st_size == 0
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        await until(lambda: verify(path).lines > 0)
        running.cancel()
        await asyncio.wait([running])

    asyncio.run(scenario())

    assert verify(path).lines == 1
    assert caplog.text.count("audit_unwritable") == 1


def test_only_what_counts_is_recorded(tmp_path: Path) -> None:
    written(tmp_path / "a", event("message_received"), event("part_sent"), event("verb_obeyed"))

    assert [json.loads(line)["event"] for line in (tmp_path / "a").read_bytes().splitlines()] == ["verb_obeyed"]
