"""Scheduler, leases, delivery and recovery together, in any order of events, with deaths between any two of them.

After each step the promises of behaviour.md are asked for; at its end the world is left in peace, and then everything has
to have come to its end, on the phones and in the journal.
"""

import re
import shutil
import tempfile
from collections import Counter
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from protocol.ids import PeerKey
from supervisor import notices
from supervisor.core.lease import Word
from supervisor.core.states import OPEN_MESSAGES, OPEN_PARTS, MessageState, PartKind, PartState
from tests.chaos.world import LIMITS, MORE, PEERS, World

DEATH = st.one_of(st.none(), st.none(), st.none(), st.integers(0, 12))  # after so many instants
NETWORK = st.sampled_from(["ok", "ok", "ok", "lost before", "lost after", "refused"])
MEMORY = Path("/dev/shm")  # a journal there is synced in no time
NEXT = {
    MessageState.RECEIVED: {MessageState.QUEUED, MessageState.COMMAND, MessageState.DEAD},
    MessageState.QUEUED: {MessageState.RUNNING, MessageState.STOPPED, MessageState.FAILED, MessageState.DROPPED},
    MessageState.RUNNING: {
        *(MessageState.ANSWERED, MessageState.STOPPED, MessageState.EMPTY, MessageState.FAILED, MessageState.LIMITED),
        *(MessageState.DECLINED, MessageState.INTERRUPTED),
    },
}
WITH_LINE = (MessageState.FAILED, MessageState.STOPPED, MessageState.EMPTY)


class Together(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(dir=MEMORY if MEMORY.is_dir() else None))
        self.world = World(self.folder / "journal")
        self.states: dict[int, MessageState] = {}

    # -- what happens

    @rule(who=st.sampled_from(PEERS), count=st.integers(1, 3))
    def somebody_writes(self, who: PeerKey, count: int) -> None:
        for _ in range(count):
            self.world.instant()
            self.world.wechat.write(who, f"message {len(self.world.wechat.written)}", self.world.now)

    @rule(who=st.sampled_from(PEERS))
    def somebody_wants_it_stopped(self, who: PeerKey) -> None:
        self.world.instant()
        self.world.wechat.write(who, "/stop", self.world.now)

    @rule(dies_in=DEATH)
    def a_poll_is_answered(self, dies_in: int | None) -> None:
        self.world.alive(lambda supervisor: supervisor.poll(), dies_in=dies_in)

    @precondition(lambda self: self.world.workers)
    @rule(
        data=st.data(),
        what=st.sampled_from(["on", "on", "speak", "speak", "speak", "fail", "crash", "nonsense"]),
        dies_in=DEATH,
    )
    def a_worker_does_something(self, data: st.DataObject, what: str, dies_in: int | None) -> None:
        key = data.draw(st.sampled_from(sorted(self.world.workers)))
        if self.world.workers[key].stage != "idle" or what in ("crash", "nonsense"):
            self.world.proceed(key, what, dies_in=dies_in)

    @precondition(lambda self: any(worker.stage == "dead" for worker in self.world.workers.values()))
    @rule(data=st.data())
    def a_worker_whose_lease_has_ended_speaks(self, data: st.DataObject) -> None:
        dead = [key for key, worker in sorted(self.world.workers.items()) if worker.stage == "dead"]
        key = data.draw(st.sampled_from(dead))
        message = self.world._next(self.world.workers[key], "nonsense")

        assert self.world.supervisor.hear(key, message) is Word.DROPPED

    @rule(who=st.sampled_from(PEERS), network=NETWORK, rounds=st.integers(1, 6), dies_in=DEATH)
    def delivery_has_its_turns(self, who: PeerKey, network: str, rounds: int, dies_in: int | None) -> None:
        self.world.alive(
            lambda supervisor: [supervisor.serve(who, network if round_ == 0 else "ok") for round_ in range(rounds)],
            dies_in=dies_in,
        )

    @rule(seconds=st.sampled_from([0.3, 3.0, 15.0, 70.0, 400.0]), dies_in=DEATH)
    def time_passes(self, seconds: float, dies_in: int | None) -> None:
        self.world.now += seconds
        self.world.alive(lambda supervisor: supervisor.watch(), dies_in=dies_in)

    @rule(again=DEATH)
    def the_supervisor_is_killed(self, again: int | None) -> None:
        self.world.restart(dies_in=again)

    # -- what has to hold, whatever happens

    @invariant()
    def a_message_moves_as_it_may_and_has_one_outcome(self) -> None:
        for row, state in self._messages():
            before = self.states.get(row, MessageState.RECEIVED)
            seen, step = {before}, {before}
            while step := {after for one in step for after in NEXT.get(one, ())} - seen:
                seen |= step
            assert state in seen, f"message {row}: {before} became {state}"
            self.states[row] = state

    @invariant()
    def no_prompt_reaches_an_agent_twice_and_each_peers_come_in_order(self) -> None:
        for who in PEERS:
            rows = [row for peer, row in self.world.reached if peer == who]
            assert rows == sorted(set(rows))

    @invariant()
    def no_more_turns_run_than_there_are_slots(self) -> None:
        running = [row for row, state in self._messages() if state is MessageState.RUNNING]
        assert len(running) <= LIMITS.concurrency

    @invariant()
    def wechat_is_never_sent_more_than_its_budget_nor_a_bubble_twice(self) -> None:
        for chat in self.world.wechat.chats.values():
            assert chat.refused == 0
            assert len({key for key, _ in chat.shown}) == len(chat.shown)

    def _messages(self) -> list[tuple[int, MessageState]]:
        return [(row, MessageState(state)) for row, state in self.world.store._rows("SELECT row, state FROM message")]

    # -- left in peace

    def teardown(self) -> None:
        try:
            self._comes_to_its_end()
        finally:
            self.world.store.close()
            shutil.rmtree(self.folder, ignore_errors=True)

    def _comes_to_its_end(self) -> None:
        self._until_at_rest()
        for _ in range(200):
            hungry = [who for who in PEERS if self.world.supervisor.boxes[who].parked]
            if not hungry:
                break
            for who in hungry:
                self.world.instant()
                self.world.wechat.write(who, "more", self.world.now)
            self._until_at_rest()

        states = dict(self._messages())
        assert len(states) == len(self.world.wechat.written), "every message that was written is recorded, once"
        assert not [row for row, state in states.items() if state in OPEN_MESSAGES]
        parts = self.world.store._rows("SELECT send_key, peer, message_row, kind, text, state FROM part ORDER BY place")
        assert not [part for part in parts if PartState(part[5]) in OPEN_PARTS]
        self._phones_show_what_the_journal_says(parts)
        self._everybody_was_told(states, parts)
        self._answers_are_whole(states, parts)

    def _until_at_rest(self) -> None:
        for _ in range(3000):
            before = (self.world.reached[-1:], len(self.world.workers), self._messages())
            self.world.alive(lambda supervisor: supervisor.poll())
            for key in sorted(self.world.workers):
                if key in self.world.workers and self.world.workers[key].stage != "idle":
                    self.world.proceed(key, "on")
            moved = False
            for who in PEERS:
                moved |= self.world.supervisor.serve(who, "ok")
            if not moved and before == (self.world.reached[-1:], len(self.world.workers), self._messages()):
                boxes = self.world.supervisor.boxes.values()
                due = [at for box in boxes if (at := box.wake_at()) is not None]
                if not due and self.world.supervisor.scheduler.at_rest():
                    stalled = [box for box in boxes if box._stalled]
                    for box in stalled:  # the network is back
                        box._stalled = False
                    if not stalled:
                        return
                self.world.now = max(self.world.now + 0.5, min(due, default=self.world.now))
                self.world.alive(lambda supervisor: supervisor.watch())
        raise AssertionError("it never comes to rest")

    def _phones_show_what_the_journal_says(self, parts: list[list[object]]) -> None:
        by_key = {part[0]: part for part in parts}
        for who, chat in self.world.wechat.chats.items():
            rows = []
            for key, _ in chat.shown:
                _, peer, row, kind, _, state = by_key[key]
                assert peer == who.peer
                assert state == PartState.ACCEPTED or kind == PartKind.COURTESY or state == PartState.DROPPED
                if kind in (PartKind.REPLY, PartKind.OUTCOME) and row is not None:
                    rows.append(row)
            assert rows == sorted(rows), "answers come in the order of what they answer"
        shown = {key for chat in self.world.wechat.chats.values() for key, _ in chat.shown}
        assert not [part for part in parts if part[5] == PartState.ACCEPTED and part[0] not in shown]

    def _everybody_was_told(self, states: dict[int, MessageState], parts: list[list[object]]) -> None:
        lines = Counter(part[2] for part in parts if part[3] == PartKind.OUTCOME and part[5] == PartState.ACCEPTED)
        for row, state in states.items():
            assert lines[row] == (1 if state in WITH_LINE else 0), (
                f"message {row} is {state}, and has {lines[row]} lines"
            )
        told = [part for part in parts if part[4] == notices.interrupted().en]
        assert len(told) == sum(state is MessageState.INTERRUPTED for state in states.values())
        assert all(part[5] == PartState.ACCEPTED for part in told)

    def _answers_are_whole(self, states: dict[int, MessageState], parts: list[list[object]]) -> None:
        texts = {key: text for chat in self.world.wechat.chats.values() for key, text in chat.shown}
        for row, state in states.items():
            keys = [part[0] for part in parts if part[2] == row and part[3] == PartKind.REPLY and part[0] in texts]
            shown = _squeezed(" ".join(re.sub(r"^\[\d+/\d+\] ", "", texts[key]) for key in keys))
            said = _squeezed(" ".join(self.world.spoken[row]))
            assert shown == said if state is MessageState.ANSWERED else said.startswith(shown), (
                row,
                state,
                shown,
                said,
            )


def _squeezed(text: str) -> str:
    return "".join(text.replace(MORE, "").split())


Together.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestTogether = Together.TestCase
