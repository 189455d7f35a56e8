"""core/trial: what the attempts of a throw-away worker mean."""

import pytest

from protocol.content import Access
from protocol.probe import WORKED, Attempt
from protocol.spec import Layer
from supervisor.core.trial import WORDS, Trial, stopped_by

ALL = tuple(Layer)


def test_every_attempt_has_its_words() -> None:
    assert WORDS.keys() == set(Attempt)


def test_a_layer_that_lets_through_what_it_forbids_is_lacking_however_loudly_it_claims_to_be_there() -> None:
    trial = Trial(
        Access.CHAT,
        layers=(Layer.SECCOMP, Layer.LANDLOCK),
        missing=(Layer.USER_NS,),
        ends=((Attempt.OPEN_UDP, WORKED), (Attempt.LIST_ROOT, "EACCES"), (Attempt.KNOW_USERS, WORKED)),
    )

    assert trial.broken == {Layer.SECCOMP}
    assert trial.holding == (Layer.LANDLOCK,)
    assert trial.lacking == (Layer.SECCOMP, Layer.USER_NS)


@pytest.mark.parametrize(
    ("attempt", "end", "layers", "expected"),
    [
        (Attempt.READ_JOURNAL, "ENOENT", ALL, Layer.MOUNT_NS),
        (Attempt.READ_JOURNAL, "EACCES", ALL, Layer.LANDLOCK),
        (Attempt.READ_JOURNAL, "EACCES", (Layer.OWN_UID, Layer.MOUNT_NS), Layer.OWN_UID),
        (Attempt.CONNECT_TCP, "EACCES", ALL, Layer.SECCOMP),
        (Attempt.CONNECT_TCP, "ECONNREFUSED", ALL, Layer.NET_NS),
        (Attempt.SIGNAL_BRIDGE, "ESRCH", ALL, Layer.PID_NS),
        (Attempt.SIGNAL_BRIDGE, "EPERM", (Layer.LANDLOCK,), Layer.LANDLOCK),
        (Attempt.BECOME_ROOT, "EPERM", (Layer.SECCOMP,), None),
    ],
)
def test_the_error_and_the_layers_in_place_say_who_stopped_it(
    attempt: Attempt, end: str, layers: tuple[Layer, ...], expected: Layer | None
) -> None:
    assert stopped_by(attempt, end, layers) == expected
