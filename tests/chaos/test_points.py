"""The seam itself: a process stands still at the point that is armed, at the passage that was asked for, and goes on after."""

import os
import select
from pathlib import Path

from tests.chaos.points import POINTS, Board, wrap

DEADLINE_S = 30.0


def test_a_process_stands_at_the_armed_passage_until_it_is_let_go(tmp_path: Path) -> None:
    board = Board(tmp_path / "board")
    reading, writing = os.pipe()
    board.arm("before_send", passages=2)
    child = os.fork()
    if child == 0:
        theirs = Board(tmp_path / "board")
        for _ in range(3):
            theirs.passing("after_send_before_record")
            theirs.passing("before_send")
            os.write(writing, b".")
        os._exit(0)

    assert select.select([reading], [], [], DEADLINE_S)[0] and os.read(reading, 1) == b"."
    while board.reached() is None:
        assert os.waitpid(child, os.WNOHANG) == (0, 0)
    assert board.reached() == child
    assert not select.select([reading], [], [], 0)[0]
    board.disarm()

    assert os.waitpid(child, 0)[1] == 0
    assert os.read(reading, 9) == b".."
    assert board.passages()["before_send"] == board.passages()["after_send_before_record"] == 3
    os.close(reading)
    os.close(writing)


def test_wrapped_calls_come_by_before_and_after_if_they_are_of_the_kind(tmp_path: Path) -> None:
    class Wire:
        def send(self, text: str) -> str:
            return text.upper()

    board = Board(tmp_path / "board")
    wrap(board, Wire, "send", before="before_send", after="after_send_before_record", when=lambda _, text: text != "no")

    assert [Wire().send(text) for text in ("yes", "no")] == ["YES", "NO"]
    assert (board.passages()["before_send"], board.passages()["after_send_before_record"]) == (1, 1)


def test_every_point_is_put_in_its_place_by_one_entry() -> None:
    here = Path(__file__).parent
    entries = ("supervisor_entry", "zygote_entry", "gateway_entry", "host")
    words = "".join((here / f"{name}.py").read_text() for name in entries)

    assert [point for point in POINTS if words.count(f'"{point}"') != 1] == []
