"""protocol/probe: the closed list of attempts, and how an end travels."""

import errno

import pytest

from protocol.content import Access
from protocol.probe import PER_REPORT, STOPPED_BY, WORKED, Attempt, attempts_at, ended, report, reported
from worker.turn import LINE_CHARS as REMARK_CHARS


def test_every_attempt_has_at_least_one_layer_that_stops_it() -> None:
    assert STOPPED_BY.keys() == set(Attempt)
    assert all(STOPPED_BY.values())


def test_an_attempts_end_travels_by_the_errors_name() -> None:
    assert ended(0) == WORKED
    assert ended(errno.EACCES) == "EACCES"
    assert ended(4095) == "4095"


def test_a_report_is_read_as_it_was_written_and_fits_into_a_remark() -> None:
    longest = sorted(Attempt, key=lambda attempt: len(attempt.value))[-PER_REPORT:]
    ends = tuple((attempt, "ECONNREFUSED") for attempt in longest)

    line = report(ends)

    assert reported(line) == ends
    assert len(line) <= REMARK_CHARS
    with pytest.raises(ValueError, match="unheard_of"):
        reported("unheard_of=EPERM")


def test_an_access_level_is_not_accused_of_what_it_is_for() -> None:
    assert set(attempts_at(Access.CHAT)) == set(Attempt)
    assert set(Attempt) - set(attempts_at(Access.READONLY)) == {Attempt.READ_WORKSPACE}
    assert set(Attempt) - set(attempts_at(Access.WORKSPACE)) == {Attempt.READ_WORKSPACE, Attempt.CHANGE_WORKSPACE}
