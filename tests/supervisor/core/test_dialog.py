import math
from collections import Counter

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from protocol.ids import AccountId, DialogId, Generation, PeerId, PeerKey
from protocol.to_supervisor import DialogKind, DialogPurpose
from protocol.to_worker import Confirmed, Dismissed, Picked, Typed
from supervisor.core.answers import Choice, Question, Why
from supervisor.core.commands import Media, Stop, may_answer, parse
from supervisor.core.dialog import (
    ASKED_MOST,
    OLDER_S,
    QUEUE_MOST,
    AgentWithdrew,
    AskAgain,
    Asked,
    DialogEffect,
    Dialogs,
    Extent,
    GoesOn,
    NotSent,
    Outcome,
    Pass,
    Put,
    Ref,
    Replied,
    Resolve,
    Say,
    Sent,
    Take,
    Tell,
    TurnOver,
    Unsay,
    Waits,
    Withdrawn,
    Woke,
)

ACCOUNT = AccountId("owner@im.wechat")
ALICE = PeerKey(ACCOUNT, PeerId("alice@im.wechat"))
BOB = PeerKey(ACCOUNT, PeerId("bob@im.wechat"))
ELSEWHERE = PeerKey(AccountId("other@im.wechat"), PeerId("alice@im.wechat"))
PEERS = (ALICE, BOB, ELSEWHERE)
G1 = Generation(1)
WALL = 1_700_000_000.0  # Unix time at monotonic zero

SNIPPETS = {"hi": "Say hello."}

COLOURS = Question(
    DialogKind.SELECT,
    DialogPurpose.QUESTION,
    "Which colour?",
    "",
    (Choice(Picked("r"), "red"), Choice(Picked("g"), "green")),
)
SURE = Question(
    DialogKind.CONFIRM, DialogPurpose.QUESTION, "Sure?", "", (Choice(Confirmed(True)), Choice(Confirmed(False)))
)
NAME = Question(DialogKind.INPUT, DialogPurpose.QUESTION, "Name?", "")


def ref(name: str = "d", who: PeerKey = ALICE, turn: int = 1) -> Ref:
    return Ref(who, G1, turn, DialogId(name))


def ask(
    name: str = "d", question: Question | None = COLOURS, who: PeerKey = ALICE, agent_s: float | None = None
) -> Asked:
    return Asked(ref(name, who), question, "zh", 180.0, agent_s)


def reply(text: str, at: float, who: PeerKey = ALICE, written: float | None = None) -> Replied:
    """at, written: monotonic, as everything here"""
    return Replied(who, text, WALL + at, WALL + (at if written is None else written))


def opened(question: Question = COLOURS, **keys: float | None) -> Dialogs:
    """Alice has been asked at 0 and it was sent at 1."""
    dialogs = Dialogs()
    dialogs.step(ask(question=question, **keys), 0.0)
    dialogs.step(Sent(ALICE, 1, WALL + 1.0), 1.0)
    return dialogs


def test_a_question_is_put_and_the_turn_waits() -> None:
    assert Dialogs().step(ask(), 0.0) == (Waits(ALICE), Put(ref(), 1, COLOURS, "zh"))


def test_an_answer_reaches_the_worker_unchanged_and_the_turn_goes_on() -> None:
    dialogs = opened()

    effects = dialogs.step(reply("2", 5.0), 5.0)

    assert effects == (Take(), Resolve(ref(), Outcome.ANSWERED, Picked("g")), GoesOn(ALICE))
    assert dialogs.step(reply("2", 6.0), 6.0) == (Pass(),)


def test_an_unreadable_reply_is_asked_again_with_a_reason() -> None:
    dialogs = opened()

    assert dialogs.step(reply("blue", 5.0), 5.0) == (Take(), AskAgain(ALICE, 1, Why.NO_SUCH_CHOICE, COLOURS, "zh"))
    assert Resolve(ref(), Outcome.ANSWERED, Picked("r")) in dialogs.step(reply("red", 6.0), 6.0)


def test_a_cancel_word_dismisses() -> None:
    assert opened().step(reply("取消", 5.0), 5.0)[1] == Resolve(ref(), Outcome.DECLINED, Dismissed())


def test_after_the_other_entry_any_text_is_the_answer() -> None:
    dialogs = opened(Question(COLOURS.kind, COLOURS.purpose, "Which?", "", COLOURS.choices, other=True))

    dialogs.step(reply("3", 5.0), 5.0)

    assert dialogs.step(reply("1", 6.0), 6.0)[1] == Resolve(ref(), Outcome.ANSWERED, Typed("1"))


@pytest.mark.parametrize(
    ("arrived", "written", "counts"),
    [
        (0.9, 0.9, False),  # was on its way while the question was being sent
        (5.0, 5.0, True),
        (5.0, 1.0 - OLDER_S - 0.1, False),  # written long before, and slow to arrive
        (5.0, 1.0 - OLDER_S + 0.1, True),  # within what clocks may differ by
    ],
)
def test_a_yes_written_before_the_question_was_sent_is_no_answer(arrived: float, written: float, counts: bool) -> None:
    """B-014"""
    effects = opened(SURE).step(reply("yes", arrived, written=written), 5.0)

    assert (effects[0] == Take()) is counts
    assert counts or effects == (Pass(),)


def test_a_question_that_is_still_being_sent_takes_no_answer() -> None:
    """B-014"""
    dialogs = Dialogs()
    dialogs.step(ask(question=SURE), 0.0)

    assert dialogs.step(reply("yes", 1.0), 1.0) == (Pass(),)


def test_another_peer_and_another_account_never_answer() -> None:
    dialogs = opened()

    assert dialogs.step(reply("1", 5.0, BOB), 5.0) == (Pass(),)
    assert dialogs.step(reply("1", 5.0, ELSEWHERE), 5.0) == (Pass(),)
    assert dialogs.view(ALICE) is not None


def test_three_questions_at_once_are_asked_one_by_one_and_the_answers_match() -> None:
    """B-026"""
    dialogs = Dialogs()
    first = dialogs.step(ask("a"), 0.0)
    assert dialogs.step(ask("b"), 0.0) == () and dialogs.step(ask("c", SURE), 0.0) == ()
    dialogs.step(Sent(ALICE, 1, WALL), 0.0)

    second = dialogs.step(reply("2", 5.0), 5.0)
    assert dialogs.step(reply("1", 5.5), 5.5) == (Pass(),), "the second is not sent yet"
    dialogs.step(Sent(ALICE, 2, WALL + 6), 6.0)
    third = dialogs.step(reply("1", 7.0), 7.0)
    dialogs.step(Sent(ALICE, 3, WALL + 8), 8.0)
    last = dialogs.step(reply("yes", 9.0), 9.0)

    assert first == (Waits(ALICE), Put(ref("a"), 1, COLOURS, "zh"))
    assert second == (Take(), Resolve(ref("a"), Outcome.ANSWERED, Picked("g")), Put(ref("b"), 2, COLOURS, "zh"))
    assert third == (Take(), Resolve(ref("b"), Outcome.ANSWERED, Picked("r")), Put(ref("c"), 3, SURE, "zh"))
    assert last == (Take(), Resolve(ref("c"), Outcome.ANSWERED, Confirmed(True)), GoesOn(ALICE))


def test_an_unanswered_question_is_recalled_at_half_time_and_ends_with_one_line() -> None:
    """B-066"""
    dialogs = opened()
    assert dialogs.wake_at() == 91.0

    reminder = dialogs.step(Woke(), 91.0)
    assert dialogs.wake_at() == 181.0
    assert dialogs.step(Woke(), 120.0) == ()
    expiry = dialogs.step(Woke(), 181.0)

    assert reminder == (Tell(ALICE, Say.REMINDER, COLOURS, "zh", 90.0),)
    assert expiry == (
        Tell(ALICE, Say.EXPIRED, COLOURS, "zh"),
        Resolve(ref(), Outcome.EXPIRED, Dismissed()),
        GoesOn(ALICE),
    )
    assert dialogs.wake_at() is None


def test_a_machine_that_slept_through_both_moments_sends_one_line() -> None:
    """B-066"""
    assert [type(effect) for effect in opened().step(Woke(), 9000.0)] == [Tell, Resolve, GoesOn]


def test_an_agent_that_waits_less_long_sets_the_limit_from_when_it_asked() -> None:
    dialogs = opened(agent_s=50.0)

    assert dialogs.wake_at() == 25.5
    dialogs.step(Woke(), 25.5)
    assert dialogs.wake_at() == 50.0


@pytest.mark.parametrize("agent_s", [math.nan, -1.0, 0.0, math.inf])
def test_an_agents_nonsense_about_its_patience_changes_nothing(agent_s: float) -> None:
    assert opened(agent_s=agent_s).wake_at() == 91.0


def test_a_question_that_cannot_be_sent_is_cancelled_without_a_word() -> None:
    """B-035"""
    dialogs = Dialogs()
    dialogs.step(ask(), 0.0)

    effects = dialogs.step(NotSent(ALICE, 1), 0.2)

    assert effects == (Resolve(ref(), Outcome.UNSENT, Dismissed()), Unsay(ALICE, 1), GoesOn(ALICE))


def test_a_sending_that_never_ends_is_bounded_too() -> None:
    """B-035"""
    dialogs = Dialogs()
    dialogs.step(ask(), 0.0)

    assert dialogs.step(Woke(), 180.0) == (
        Resolve(ref(), Outcome.UNSENT, Dismissed()),
        Unsay(ALICE, 1),
        GoesOn(ALICE),
    )


def test_what_became_of_an_earlier_sending_means_nothing_to_the_next() -> None:
    dialogs = Dialogs()
    dialogs.step(ask("a"), 0.0)
    dialogs.step(ask("b"), 0.0)
    dialogs.step(NotSent(ALICE, 1), 0.1)

    assert dialogs.step(NotSent(ALICE, 1), 0.2) == ()
    dialogs.step(Sent(ALICE, 1, WALL), 0.2)
    assert dialogs.step(reply("1", 1.0), 1.0) == (Pass(),)


def test_a_peer_that_cannot_be_asked_costs_the_turn_nothing() -> None:
    assert Dialogs().step(ask(question=None), 0.0) == (Resolve(ref(), Outcome.NOT_ASKED, Dismissed()),)


def test_an_agent_that_asks_without_end_is_declined() -> None:
    dialogs = Dialogs()
    for number in range(QUEUE_MOST + 1):
        dialogs.step(ask(f"d{number}"), 0.0)

    assert dialogs.step(ask("more"), 0.0) == (Resolve(ref("more"), Outcome.NOT_ASKED, Dismissed()),)


def test_a_turn_that_asks_for_ever_is_declined_and_the_next_one_begins_anew() -> None:
    dialogs = Dialogs()
    for number in range(ASKED_MOST):
        dialogs.step(ask(f"d{number}"), 0.0)
        dialogs.step(NotSent(ALICE, number + 1), 0.0)

    assert dialogs.step(ask("more"), 0.0) == (Resolve(ref("more"), Outcome.NOT_ASKED, Dismissed()),)
    another = Asked(ref("more", turn=2), COLOURS, "zh", 180.0)
    assert Waits(ALICE) in dialogs.step(another, 0.0)


def test_a_second_question_by_the_same_name_is_the_first_one() -> None:
    dialogs = opened()

    assert dialogs.step(ask(), 2.0) == ()


def test_a_withdrawn_question_ends_with_one_line_and_the_next_is_asked() -> None:
    dialogs = opened()
    dialogs.step(ask("b"), 2.0)

    assert dialogs.step(Withdrawn(ALICE, Extent.OPEN), 3.0) == (
        Tell(ALICE, Say.WITHDRAWN, COLOURS, "zh"),
        Resolve(ref(), Outcome.WITHDRAWN, Dismissed()),
        Put(ref("b"), 2, COLOURS, "zh"),
    )


def test_all_questions_are_withdrawn_with_one_line() -> None:
    dialogs = opened()
    dialogs.step(ask("b"), 2.0)

    effects = dialogs.step(Withdrawn(ALICE, Extent.ALL), 3.0)

    assert [effect for effect in effects if isinstance(effect, Tell)] == [Tell(ALICE, Say.WITHDRAWN, COLOURS, "zh")]
    assert {effect.ref for effect in effects if isinstance(effect, Resolve)} == {ref(), ref("b")}
    assert effects[-1] == GoesOn(ALICE)
    assert dialogs.step(Withdrawn(ALICE, Extent.ALL), 3.0) == ()


def test_an_agent_that_gives_up_is_sent_no_answer_and_its_peer_is_told() -> None:
    assert opened().step(AgentWithdrew(ref()), 3.0) == (
        Tell(ALICE, Say.WITHDRAWN, COLOURS, "zh"),
        Resolve(ref(), Outcome.GONE, None),
        GoesOn(ALICE),
    )
    assert opened().step(AgentWithdrew(ref("another")), 3.0) == ()


def test_dialogs_end_with_their_turn_without_a_line_of_their_own() -> None:
    dialogs = opened()
    dialogs.step(ask("b"), 2.0)

    assert dialogs.step(TurnOver(ALICE, 2), 3.0) == (), "another turn's end"
    effects = dialogs.step(TurnOver(ALICE, 1), 3.0)

    assert {type(effect) for effect in effects} == {Resolve, GoesOn}
    assert all(effect.answer is None for effect in effects if isinstance(effect, Resolve))
    assert dialogs.step(reply("1", 4.0), 4.0) == (Pass(),)


# --- any script


class DialogWorld(RuleBasedStateMachine):
    """Peers who write anything at any time, workers that ask, give up and die, sends that fail: the promises are checked
    after each step. A restart begins with nothing, and what was open is lost with its worker."""

    def __init__(self) -> None:
        super().__init__()
        self.dialogs = Dialogs()
        self.now = 0.0
        self.names = 0
        self.turn: dict[PeerKey, int] = {}  # of a living worker
        self.turns = 0
        self.asked: set[Ref] = set()  # not resolved yet
        self.resolved: Counter[Ref] = Counter()
        self.shown: dict[PeerKey, tuple[Ref, int]] = {}  # the question that was put last, with its number
        self.sent: dict[int, float] = {}
        self.waiting: set[PeerKey] = set()

    def do(self, event: object, *, by: PeerKey | None = None) -> tuple[DialogEffect, ...]:
        effects = self.dialogs.step(event, self.now)  # type: ignore[arg-type]
        for effect in effects:
            match effect:
                case Put(ref_, number):
                    assert ref_ in self.asked
                    assert ref_.who not in self.shown, "one at a time"
                    self.shown[ref_.who] = (ref_, number)
                case Resolve(ref_, outcome, answer):
                    self.resolved[ref_] += 1
                    self.asked.discard(ref_)
                    if self.shown.get(ref_.who, (None, 0))[0] == ref_:
                        del self.shown[ref_.who]
                    assert self.turn.get(ref_.who) == ref_.turn or answer is None, "never after its worker died"
                    if outcome is Outcome.ANSWERED:
                        assert ref_.who == by, "never by another peer"
                    assert (answer is None) is (outcome in (Outcome.GONE, Outcome.TURN_OVER))
                case Tell(who) | AskAgain(who):
                    assert who in self.turn
                case Waits(who):
                    assert who not in self.waiting
                    self.waiting.add(who)
                case GoesOn(who):
                    assert who in self.waiting
                    self.waiting.discard(who)
                case _:
                    pass
        return effects

    @rule(who=st.sampled_from(PEERS))
    def turn_begins(self, who: PeerKey) -> None:
        if who not in self.turn:
            self.turns += 1
            self.turn[who] = self.turns

    @precondition(lambda self: self.turn)
    @rule(
        data=st.data(),
        question=st.sampled_from([COLOURS, COLOURS, SURE, NAME, None]),
        limit=st.sampled_from([5.0, 180.0]),
    )
    def worker_asks(self, data: st.DataObject, question: Question | None, limit: float) -> None:
        who = data.draw(st.sampled_from(sorted(self.turn)))
        self.names += 1
        new = Ref(who, G1, self.turn[who], DialogId(str(self.names)))
        self.asked.add(new)
        self.do(Asked(new, question, "en", limit, data.draw(st.sampled_from([None, 3.0, 50.0]))))

    @precondition(lambda self: self.shown)
    @rule(data=st.data(), well=st.sampled_from([True, True, True, False]))
    def sending_ends(self, data: st.DataObject, well: bool) -> None:
        who = data.draw(st.sampled_from(sorted(self.shown)))
        _, number = self.shown[who]
        if number in self.sent:
            return
        if well:
            self.sent[number] = self.now
            self.do(Sent(who, number, WALL + self.now))
        else:
            self.do(NotSent(who, number))

    @rule(
        who=st.sampled_from(PEERS),
        text=st.sampled_from(["1", "2", "yes", "no", "取消", "green", "hello", "", "第一个", "9", "/usr/bin"]),
        age=st.sampled_from([0.0, 0.0, 1.0, 10.0]),
    )
    def peer_writes(self, who: PeerKey, text: str, age: float) -> None:
        assert may_answer(parse(text, Media.NONE, SNIPPETS), Media.NONE)
        shown = self.shown.get(who)
        effects = self.do(Replied(who, text, WALL + self.now, WALL + self.now - age), by=who)
        assert sum(isinstance(effect, Take | Pass) for effect in effects) == 1
        at = self.sent.get(shown[1]) if shown is not None else None
        assert (Take() in effects) is (at is not None and self.now - age >= at - OLDER_S)

    @rule(who=st.sampled_from(PEERS), text=st.sampled_from(["/status", "/Help", "/new", "/hi", "/stop", "1", "yes"]))
    def peer_commands_or_sends_media(self, who: PeerKey, text: str) -> None:
        """What intake does: none of it reaches the dialog, but for a stop, which ends its turn."""
        media = Media.NONE if text.startswith("/") else Media.SOME
        command = parse(text, media, SNIPPETS)
        assert not may_answer(command, media)
        if isinstance(command, Stop) and who in self.turn:
            self.do(TurnOver(who, self.turn.pop(who)))

    @rule(who=st.sampled_from(PEERS), extent=st.sampled_from(Extent))
    def operator_withdraws(self, who: PeerKey, extent: Extent) -> None:
        self.do(Withdrawn(who, extent))
        assert extent is Extent.OPEN or not any(ref_.who == who for ref_ in self.asked)

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def agent_gives_up(self, data: st.DataObject) -> None:
        self.do(AgentWithdrew(data.draw(st.sampled_from(sorted(self.asked, key=str)))))

    @precondition(lambda self: self.turn)
    @rule(data=st.data())
    def turn_ends_stops_or_dies(self, data: st.DataObject) -> None:
        who = data.draw(st.sampled_from(sorted(self.turn)))
        turn = self.turn.pop(who)
        self.do(TurnOver(who, turn))
        assert not any(ref_.who == who for ref_ in self.asked)

    @rule(seconds=st.sampled_from([0.1, 2.0, 4.0, 60.0, 200.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.do(Woke())

    @rule()
    def restart(self) -> None:
        self.dialogs = Dialogs()
        for lost in self.asked:
            self.resolved[lost] += 1  # the journal's "lost": Store.end_lost_dialogs
        self.asked.clear()
        self.shown.clear()
        self.sent.clear()
        self.turn.clear()
        self.waiting.clear()

    @invariant()
    def each_is_resolved_exactly_once(self) -> None:
        assert all(count == 1 for count in self.resolved.values())
        assert not self.asked & self.resolved.keys()

    @invariant()
    def whoever_waits_has_one_open_question(self) -> None:
        waiting = {ref_.who for ref_ in self.asked}
        assert waiting == self.waiting == set(self.shown) == set(self.dialogs.open())

    @invariant()
    def nothing_waits_for_ever(self) -> None:
        assert (self.dialogs.wake_at() is not None) is bool(self.asked)


DialogWorld.TestCase.settings = hypothesis_settings(max_examples=150, stateful_step_count=50, deadline=None)
TestDialogWorld = DialogWorld.TestCase
