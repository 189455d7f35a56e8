"""protocol/probe: the closed list of attempts, and how an end travels."""

import errno

from protocol.probe import STOPPED_BY, WORKED, Attempt, ended


def test_every_attempt_has_at_least_one_layer_that_stops_it() -> None:
    assert STOPPED_BY.keys() == set(Attempt)
    assert all(STOPPED_BY.values())


def test_an_attempts_end_travels_by_the_errors_name() -> None:
    assert ended(0) == WORKED
    assert ended(errno.EACCES) == "EACCES"
    assert ended(4095) == "4095"
