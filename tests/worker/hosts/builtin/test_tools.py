"""The built-in agent's tools, one by one: what they bound, and how they word it."""

import asyncio
import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from protocol.agents import Approvals
from protocol.to_supervisor import DialogKind, DialogOption, DialogPurpose
from protocol.to_worker import DialogAnswer, Dismissed
from tests.fakes.hosts import spec_in
from tests.fakes.workers import until
from worker.hosts.base import SessionSpec
from worker.hosts.builtin.tools import OUTPUT_CHARS, READ_CHARS, Toolbox


class Nobody:
    """A peer that answers nothing."""

    async def ask(
        self,
        kind: DialogKind,
        purpose: DialogPurpose,
        title: str,
        body: str = "",
        options: tuple[DialogOption, ...] = (),
        *,
        other_allowed: bool = False,
    ) -> DialogAnswer:
        return Dismissed()

    def plan(self, entries: Sequence[tuple[str, str]]) -> None:
        pass


def alive_in(group: int) -> list[int]:
    """Processes of this group that still run."""
    found = []
    for process in psutil.process_iter(["status"]):
        try:
            if os.getpgid(process.pid) == group and process.info["status"] != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except ProcessLookupError:
            pass
    return found


@pytest.fixture
def spec(tmp_path: Path) -> SessionSpec:
    return replace(spec_in(tmp_path), approvals=Approvals.ALLOW)


@pytest.fixture
def tools(spec: SessionSpec) -> Toolbox:
    return Toolbox(spec, Nobody())


def test_reading_is_bounded_and_says_how_much_is_left(tools: Toolbox, spec: SessionSpec) -> None:
    (spec.workspace / "long").write_text("".join(f"line {number}\n" for number in range(10_000)))
    (spec.workspace / "wide").write_text("x" * 200_000)
    (spec.workspace / "bytes").write_bytes(b"\xff\xfe\x00")
    os.truncate(os.open(spec.workspace / "huge", os.O_CREAT | os.O_WRONLY), 1 << 30)

    async def scenario() -> None:
        assert (await tools.read("long")).endswith("(8000 more lines)")
        assert (await tools.read("long", 9_999)) == "line 9998\nline 9999\n"
        assert len(await tools.read("wide")) <= READ_CHARS + 50
        assert await tools.read("bytes") == "The file is not text."
        assert "larger than" in await tools.read("huge")
        os.mkfifo(spec.workspace / "pipe")
        assert await tools.read("pipe") == "Cannot be read: it is no file."
        assert await tools.read("/dev/zero") == "Cannot be read: it is no file."
        assert await tools.read("absent") == "Cannot be read: No such file or directory."
        assert (await tools.read(".")).splitlines() == ["bytes", "huge", "long", "pipe", "wide"]

    asyncio.run(scenario())


def test_an_edit_needs_its_place_to_be_there_once(tools: Toolbox, spec: SessionSpec) -> None:
    file = spec.workspace / "a"
    file.write_text("one two two")

    async def scenario() -> None:
        assert "2 times" in await tools.edit("a", "two", "three")
        assert "0 times" in await tools.edit("a", "", "x")
        assert "0 times" in await tools.edit("a", "four", "x")
        assert (await tools.edit("a", "one", "1")).startswith("Written")
        assert file.read_text() == "1 two two"
        assert "No such file" in await tools.edit("absent", "a", "b")

    asyncio.run(scenario())


def test_writing_makes_the_folders_it_needs(tools: Toolbox, spec: SessionSpec) -> None:
    asyncio.run(tools.write("deep/er/a.txt", "x"))

    assert (spec.workspace / "deep" / "er" / "a.txt").read_text() == "x"


def test_a_commands_output_keeps_its_beginning_and_its_end(tools: Toolbox) -> None:
    shown = asyncio.run(tools.bash("echo BEGIN; head -c 5000000 /dev/zero | tr '\\0' x; echo END"))

    assert shown.startswith("BEGIN") and shown.endswith("END") and "bytes left out" in shown
    assert len(shown) < OUTPUT_CHARS + 100


def test_a_command_that_takes_too_long_is_ended_with_all_it_started(tools: Toolbox, spec: SessionSpec) -> None:
    shown = asyncio.run(tools.bash("echo $$ > pid; sleep 300 & wait", timeout_s=1))

    assert shown.endswith("(ended after 1 s)")
    group = int((spec.workspace / "pid").read_text())
    asyncio.run(until(lambda: alive_in(group) == []))


def test_a_cancelled_command_is_ended_too(tools: Toolbox, spec: SessionSpec) -> None:
    async def scenario() -> None:
        running = asyncio.ensure_future(tools.bash("echo $$ > pid; sleep 300"))
        await until(lambda: (spec.workspace / "pid").exists() and bool((spec.workspace / "pid").read_text().strip()))
        running.cancel()
        await asyncio.wait([running])

    asyncio.run(scenario())
    group = int((spec.workspace / "pid").read_text())
    asyncio.run(until(lambda: alive_in(group) == []))


def test_a_command_sees_its_own_home_and_no_token(tmp_path: Path) -> None:
    spec = replace(
        spec_in(tmp_path),
        approvals=Approvals.ALLOW,
        gateway_url="http://127.0.0.1:9",
        token="TOKEN",
        env=(("MINE", "1"),),
    )

    shown = asyncio.run(Toolbox(spec, Nobody()).bash("env"))

    assert f"HOME={spec.session_dir}/home" in shown and "MINE=1" in shown
    assert "TOKEN" not in shown


@pytest.mark.parametrize(
    ("answer", "told"), [({"ok": True, "detail": ""}, "was sent"), ({"ok": False, "detail": "too large"}, "too large")]
)
def test_a_file_is_laid_out_and_its_answer_awaited(spec: SessionSpec, answer: dict[str, object], told: str) -> None:
    tools = Toolbox(spec, Nobody())
    (spec.workspace / "report.pdf").write_bytes(b"%PDF")
    outbox = spec.session_dir / "outbox"

    async def scenario() -> None:
        sending = asyncio.ensure_future(tools.send_file("report.pdf", "here"))
        await until(lambda: outbox.is_dir() and bool(list(outbox.glob("*.json"))))
        (note,) = outbox.glob("*.json")
        assert json.loads(note.read_text()) == {"name": "report.pdf", "caption": "here"}
        assert (outbox / note.stem / "report.pdf").read_bytes() == b"%PDF"
        (outbox / f"{note.stem}.answer").write_text(json.dumps(answer))
        assert told in await sending

    asyncio.run(scenario())


def test_a_file_that_cannot_be_read_is_not_sent(tools: Toolbox) -> None:
    assert asyncio.run(tools.send_file("absent")) == "The file was not sent: absent: No such file or directory"
