"""The checks find what they are there for: each violation is planted into a home that is well."""

from dataclasses import replace

import pytest

from tests.chaos.checks import INTERRUPTED, Bubble, Message, Part, Said, Send, Snapshot, violations

ME = "me"
TOLD = next(iter(sorted(INTERRUPTED)))


def parted(row: int, text: str, *, kind: str = "reply", state: str = "accepted", key: str = "") -> Part:
    return Part(key or f"k{row}", ME, row, kind, text, state)


WELL = Snapshot(
    said=[
        Said("m1", ME, "t1 say", "t1 done."),
        Said("m2", ME, "t2 say", "t2 done."),
        Said("m3", ME, "t3 fail", "t3 begins."),
        Said("m4", ME, "t4 say", "t4 done."),
    ],
    bubbles=[
        Bubble(ME, "k1", "t1 done."),
        Bubble(ME, "k2", TOLD),
        Bubble(ME, "k3", "failed"),
        Bubble(ME, "k4", "[1/2] t4"),
        Bubble(ME, "k5", "[2/2] done."),
    ],
    sends=[Send(ME, f"k{number}", "delivered", 1000 * number) for number in range(1, 6)],
    messages=[
        Message(1, ME, "m1", "answered", 1),
        Message(2, ME, "m2", "interrupted", 1),
        Message(3, ME, "m3", "failed", 1),
        Message(4, ME, "m4", "answered", 1),
    ],
    parts=[
        parted(1, "t1 done."),
        Part("k2", ME, None, "outcome", TOLD, "accepted"),
        parted(3, "failed", kind="outcome"),
        parted(4, "t4"),
        parted(4, "done.", key="k5"),
    ],
    prompts={ME: ["t1", "t2", "t3", "t4"]},
    counters={"turns_answered": 2, "turns_interrupted": 1, "turns_failed": 1, "received": 4, "parts_sent": 5},
    spent={ME: (2, 2)},
    supervisor_kills=1,
)

PLANTED: dict[str, tuple[Snapshot, str]] = {
    "a message that is nowhere": (replace(WELL, said=[*WELL.said, Said("m5", ME, "t5 say", "x")]), "is nowhere"),
    "a message recorded twice": (replace(WELL, messages=[*WELL.messages, replace(WELL.messages[0], row=5)]), "2 times"),
    "a message without an outcome": (
        replace(WELL, messages=[*WELL.messages[:3], replace(WELL.messages[3], state="queued")]),
        "still queued",
    ),
    "a failure that nobody was told of": (replace(WELL, parts=[*WELL.parts[:2], *WELL.parts[3:]]), "with 0 lines"),
    "two outcomes": (
        replace(WELL, parts=[*WELL.parts, parted(1, "failed", kind="outcome", key="k9")]),
        "told something else",
    ),
    "an interruption told twice": (
        replace(WELL, parts=[*WELL.parts, Part("k8", ME, None, "outcome", TOLD, "accepted")]),
        "told of 2",
    ),
    "set aside without two deaths": (
        replace(WELL, messages=[*WELL.messages[:3], replace(WELL.messages[3], state="dead")]),
        "set aside",
    ),
    "a prompt that reached an agent twice": (replace(WELL, prompts={ME: ["t1", "t1", "t2", "t3", "t4"]}), "2 times"),
    "an answer out of nothing": (replace(WELL, prompts={ME: ["t1", "t2", "t3"]}), "no agent saw it"),
    "prompts out of order": (replace(WELL, prompts={ME: ["t2", "t1", "t3", "t4"]}), "out of order"),
    "a bubble shown twice": (replace(WELL, bubbles=[*WELL.bubbles, WELL.bubbles[0]]), "shown 2 times"),
    "a bubble that the journal does not know": (
        replace(WELL, bubbles=[*WELL.bubbles, Bubble(ME, "k7", "?")]),
        "not in the journal",
    ),
    "a bubble that was never shown": (replace(WELL, bubbles=WELL.bubbles[:4]), "on no phone"),
    "a part left on its way": (
        replace(WELL, parts=[*WELL.parts, parted(1, "x", state="sending", key="k9")]),
        "still sending",
    ),
    "an answer with a hole": (
        replace(WELL, bubbles=[*WELL.bubbles[:3], Bubble(ME, "k4", "[1/2] t"), WELL.bubbles[4]]),
        "is answered with",
    ),
    "answers out of order": (
        replace(WELL, bubbles=[WELL.bubbles[3], WELL.bubbles[4], *WELL.bubbles[:3]]),
        "comes behind",
    ),
    "more sent than the budget": (replace(WELL, sends=[*WELL.sends, Send(ME, "k9", "rejected")]), "over its budget"),
    "a budget counted too low": (replace(WELL, spent={ME: (1, 2)}), "the service 2"),
    "a counter that is off": (replace(WELL, counters={**WELL.counters, "turns_answered": 3}), "counter turns_answered"),
}


def test_a_home_that_is_well_has_no_violation() -> None:
    assert violations(WELL) == []


@pytest.mark.parametrize("what", PLANTED)
def test_what_is_planted_is_found(what: str) -> None:
    snapshot, words = PLANTED[what]

    assert any(words in line for line in violations(snapshot)), violations(snapshot)


def test_a_message_may_be_missing_only_where_the_service_hands_it_out_once_and_its_supervisor_was_killed() -> None:
    missing = replace(WELL, said=[*WELL.said, Said("m5", ME, "t5 say", "x")], kept=False)

    assert violations(missing) != []
    assert violations(replace(missing, may_be_lost=frozenset({"m5"}))) == []


def test_a_send_that_met_a_message_on_its_way_may_have_been_counted_on_either_side() -> None:
    sends = [*WELL.sends, Send(ME, "k9", "rejected", 6000)]
    met = [replace(WELL.said[0], at_ms=4990), *WELL.said[1:]]

    assert violations(replace(WELL, sends=sends, said=met)) == []
