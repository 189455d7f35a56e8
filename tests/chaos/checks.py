"""What has to be true of a home once it is at rest: the promises of behaviour.md, as questions to two witnesses.

Outside: what the simulated WeChat handed over, received and showed. Inside: the journal, and the agents' own lists of
prompts. Pure: in come snapshots, out come the violations, each one line. tests/chaos/test_checks.py plants each of them.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from supervisor import notices

OPEN_MESSAGES = frozenset({"received", "queued", "running", "asking"})
ON_THE_WAY = frozenset({"pending", "sending"})
NO_TURN = frozenset({"turned_away", "dropped", "refused", "ignored", "command"})
WITH_LINE = frozenset({"failed", "stopped", "empty", "limited", "declined"})
COUNTER_OF = {
    "answered": "turns_answered",
    "failed": "turns_failed",
    "stopped": "turns_stopped",
    "empty": "turns_empty",
    "limited": "turns_limited",
    "declined": "turns_declined",
    "interrupted": "turns_interrupted",
    "turned_away": "turned_away",
    "dropped": "dropped",
    "dead": "dead",
    "refused": "refused",
}
CROSSING_MS = 100  # the fastest journey of a message here, on a machine that is busy
_NUMBER = re.compile(r"^\[\d+/\d+\] ")
_MORE = {notices.more_waiting().en, notices.more_waiting().zh}
INTERRUPTED = {notices.interrupted().en, notices.interrupted().zh}


@dataclass(frozen=True, slots=True)
class Said:
    """A message that a person wrote. answer: what the agent has to say to all of it, None where that is open

    seq    its place in the service's queue
    whole  False: the agent may end its answer early by itself, when its model breaks off
    """

    message_id: str
    person: str
    text: str
    answer: str | None
    at_ms: int = 0
    seq: int = 0
    whole: bool = True

    @property
    def token(self) -> str:
        return self.text.split()[0]


@dataclass(frozen=True, slots=True)
class Bubble:
    person: str
    client_id: str
    text: str


@dataclass(frozen=True, slots=True)
class Send:
    """One request as the service judged it: delivered, repeat, rejected, suppressed, dropped, hidden."""

    person: str
    client_id: str
    outcome: str
    at_ms: int = 0


@dataclass(frozen=True, slots=True)
class Message:
    row: int
    person: str
    message_id: str
    state: str
    handled: int


@dataclass(frozen=True, slots=True)
class Part:
    send_key: str
    person: str
    message_row: int | None
    kind: str
    text: str
    state: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """said: in the order of writing. bubbles: per phone in its order. spent: (ours, the service's) of each peer.

    kept        the service hands a batch out again until it sees the next cursor: nothing may be missing
    may_be_lost ids that were handed out once, in a batch whose cursor never came back: its supervisor was killed first
    """

    said: Sequence[Said] = ()
    bubbles: Sequence[Bubble] = ()
    sends: Sequence[Send] = ()
    messages: Sequence[Message] = ()
    parts: Sequence[Part] = ()
    prompts: Mapping[str, Sequence[str]] = field(default_factory=dict)
    counters: Mapping[str, int] = field(default_factory=dict)
    spent: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    supervisor_kills: int = 0
    kept: bool = True
    may_be_lost: frozenset[str] = frozenset()


def violations(seen: Snapshot) -> list[str]:
    return [
        *_each_message_has_one_outcome(seen),
        *_no_prompt_twice(seen),
        *_each_part_is_shown_once(seen),
        *_answers_are_whole(seen),
        *_order(seen),
        *_budgets(seen),
        *_counters(seen),
    ]


def violations_in_trouble(seen: Snapshot) -> list[str]:
    """Where the service refuses, swallows and repeats: what has to hold in spite of it."""
    shown = Counter(bubble.client_id for bubble in seen.bubbles)
    return [
        *_each_message_has_one_outcome(seen),
        *_no_prompt_twice(seen),
        *(f"bubble {key} is shown {count} times" for key, count in shown.items() if count > 1),
        *(f"part {part.send_key} is still {part.state}" for part in seen.parts if part.state in ON_THE_WAY),
        *_order(seen),
    ]


def _each_message_has_one_outcome(seen: Snapshot) -> list[str]:
    found = []
    rows = Counter(message.message_id for message in seen.messages)
    found += [f"message {name} stands {count} times in the journal" for name, count in rows.items() if count > 1]
    for said in seen.said:
        if said.message_id not in rows and (seen.kept or said.message_id not in seen.may_be_lost):
            found.append(f"message {said.message_id} ({said.text}) of {said.person} was handed over and is nowhere")
    known = {said.message_id for said in seen.said}
    outcomes = Counter(part.message_row for part in seen.parts if part.kind == "outcome" and part.state != "dropped")
    for message in seen.messages:
        if message.message_id not in known:
            found.append(f"message {message.message_id} in the journal was never written")
        if message.state in OPEN_MESSAGES:
            found.append(f"message {message.row} is still {message.state}")
        if message.state in WITH_LINE and outcomes[message.row] != 1:
            found.append(f"message {message.row} is {message.state} with {outcomes[message.row]} lines to its peer")
        if message.state == "answered" and outcomes[message.row]:
            found.append(f"message {message.row} is answered, and its peer was told something else too")
        if message.state == "dead" and seen.supervisor_kills < 2:
            found.append(f"message {message.row} was set aside after {seen.supervisor_kills} deaths")
    told = Counter(part.person for part in seen.parts if part.text in INTERRUPTED)
    cut = Counter(message.person for message in seen.messages if message.state == "interrupted")
    for person in told.keys() | cut.keys():
        if told[person] != cut[person]:
            found.append(f"{person}: {cut[person]} turns interrupted, told of {told[person]}")
    return found


def _no_prompt_twice(seen: Snapshot) -> list[str]:
    found = []
    state = {message.message_id: message.state for message in seen.messages}
    reached = Counter(token for tokens in seen.prompts.values() for token in tokens)
    found += [f"prompt {token} reached an agent {count} times" for token, count in reached.items() if count > 1]
    for said in seen.said:
        outcome = state.get(said.message_id)
        if said.answer is None:
            continue
        if outcome == "answered" and not reached[said.token]:
            found.append(f"{said.token} is answered, and no agent saw it")
        if outcome in NO_TURN and reached[said.token]:
            found.append(f"{said.token} is {outcome}, and an agent saw it")
    for person, tokens in seen.prompts.items():
        written = [said.token for said in seen.said if said.person == person and said.answer is not None]
        if list(tokens) != [token for token in written if token in set(tokens)]:
            found.append(f"{person}: the agent saw {list(tokens)} out of order")
    return found


def _each_part_is_shown_once(seen: Snapshot) -> list[str]:
    found = []
    shown = Counter(bubble.client_id for bubble in seen.bubbles)
    parts = {part.send_key: part for part in seen.parts}
    for key, count in shown.items():
        if count > 1:
            found.append(f"bubble {key} is shown {count} times")
        if key not in parts:
            found.append(f"bubble {key} is on a phone, and not in the journal")
        elif parts[key].state != "accepted" and (parts[key].kind, parts[key].state) != ("courtesy", "dropped"):
            found.append(f"bubble {key} is on a phone, and {parts[key].state} in the journal")
    for part in seen.parts:
        if part.state == "accepted" and part.send_key not in shown:
            found.append(f"part {part.send_key} counts as accepted, and is on no phone")
        if part.state in ON_THE_WAY:
            found.append(f"part {part.send_key} is still {part.state}")
        if part.state in ("rejected", "unconfirmed"):
            found.append(f"part {part.send_key} is {part.state} although nothing was wrong")
    found += [
        f"a send to {send.person} was {send.outcome}"
        for send in seen.sends
        if send.outcome in ("suppressed", "dropped")
    ]
    return found


def _squeezed(texts: Sequence[str]) -> str:
    joined = []
    for text in texts:
        lines = [line for line in _NUMBER.sub("", text).splitlines() if line not in _MORE]
        joined.append("".join("".join(lines).split()))
    return "".join(joined)


def _answers_are_whole(seen: Snapshot) -> list[str]:
    found = []
    said = {one.message_id: one for one in seen.said}
    bubble = {one.client_id: one.text for one in seen.bubbles}
    replies: dict[int, list[str]] = {}
    for part in seen.parts:
        if part.kind == "reply" and part.message_row is not None and part.state == "accepted":
            replies.setdefault(part.message_row, []).append(bubble.get(part.send_key, part.text))
    for message in seen.messages:
        one = said.get(message.message_id)
        if one is None or one.answer is None:
            continue
        shown, whole = _squeezed(replies.get(message.row, [])), "".join(one.answer.split())
        if message.state == "answered" and one.whole and shown != whole:
            found.append(f"message {message.row} is answered with {shown[:80]!r} of {whole[:80]!r}")
        if message.state != "answered" and one.whole and not whole.startswith(shown):
            found.append(
                f"message {message.row} ({message.state}): the phone shows {shown[:80]!r}, no part of its answer"
            )
    return found


def _order(seen: Snapshot) -> list[str]:
    found = []
    row = {part.send_key: part.message_row for part in seen.parts if part.kind in ("reply", "outcome")}
    by_person: dict[str, list[int]] = {}
    for bubble in seen.bubbles:
        of = row.get(bubble.client_id)
        if of is not None:
            by_person.setdefault(bubble.person, []).append(of)
    for person, rows in by_person.items():
        if rows != sorted(rows):
            wrong = next(index for index in range(1, len(rows)) if rows[index] < rows[index - 1])
            found.append(f"{person}: the answer to message {rows[wrong]} comes behind that to {rows[wrong - 1]}")
    written: dict[str, list[str]] = {}
    for said in seen.said:
        written.setdefault(said.person, []).append(said.message_id)
    recorded: dict[str, list[str]] = {}
    for message in sorted(seen.messages, key=lambda message: message.row):
        recorded.setdefault(message.person, []).append(message.message_id)
    for person, names in recorded.items():
        if names != [name for name in written.get(person, []) if name in set(names)]:
            found.append(f"{person}: messages are recorded out of order")
    return found


def _budgets(seen: Snapshot) -> list[str]:
    found = []
    for number, send in enumerate(seen.sends):
        if send.outcome == "rejected" and not _crossed(seen, number):
            found.append(f"{send.person}: the service refused {send.client_id}: over its budget")
    for person, (ours, theirs) in seen.spent.items():
        if ours < theirs and not _crossed(seen, len(seen.sends), person):
            found.append(f"{person}: we count {ours} messages since theirs, the service {theirs}")
    return found


def _crossed(seen: Snapshot, number: int, person: str = "") -> bool:
    """Did a send of this person's, before that one, meet their message on its way? Nobody can tell on which side of it the
    service counted that, since all that we know of its clock is when its messages arrive."""
    person = person or seen.sends[number].person
    before = [send.at_ms for send in seen.sends[:number] if send.person == person and send.outcome == "delivered"]
    return any(
        0 <= sent_ms - said.at_ms <= CROSSING_MS
        for said in seen.said
        if said.person == person
        for sent_ms in before[-12:]
    )


def _counters(seen: Snapshot) -> list[str]:
    states = Counter(message.state for message in seen.messages)
    wanted = {counter: states[state] for state, counter in COUNTER_OF.items()}
    wanted["received"] = len(seen.messages)
    wanted["parts_sent"] = sum(part.state == "accepted" for part in seen.parts)
    return [
        f"counter {name} says {seen.counters.get(name, 0)}, the journal holds {count}"
        for name, count in wanted.items()
        if seen.counters.get(name, 0) != count
    ]
