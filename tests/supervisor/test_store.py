"""The journal keeps what was handed over, once, whatever ids, texts, disks and deaths it meets."""

import asyncio
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from protocol.content import Role
from protocol.errors import BridgeError
from protocol.ids import (
    AccountId,
    Cursor,
    DialogId,
    Generation,
    MessageId,
    PeerId,
    PeerKey,
    ReplyToken,
    SendKey,
    SessionId,
)
from supervisor.channels.base import Batch, RawMessage
from supervisor.core.states import OPEN_MESSAGES, OPEN_PARTS
from supervisor.store import (
    COUNTERS,
    AddDialog,
    AddPart,
    AddRule,
    AddUsage,
    BeginHandling,
    Bump,
    CountRefused,
    EndDialog,
    FailureRecord,
    ForgetRefused,
    Heard,
    HistoryRow,
    Journal,
    JournalDamaged,
    JournalUnavailable,
    MessageRow,
    MessageState,
    ParkedRecord,
    PartKind,
    PartState,
    PutBack,
    RevokeRule,
    SetGeneration,
    SetInterruptedNote,
    SetMessage,
    SetPart,
    SetSession,
    StartedTurn,
    Store,
)

OWNER = AccountId("owner@im.wechat")
OTHER = AccountId("other@im.wechat")
ALICE = PeerKey(OWNER, PeerId("alice@im.wechat"))
BOB = PeerKey(OWNER, PeerId("bob@im.wechat"))
DAY = 86_400.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.db"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    store, warnings = Store.open(path)
    assert warnings == ()
    store.sign_in(OWNER, "bot-1@im.bot", "", None, at=1.0)
    yield store
    store.close()


def said(
    number: int | str,
    who: PeerKey = ALICE,
    *,
    content: str = "",
    created_at_ms: int | None = 1_000,
    raw: bytes = b"{}",
) -> RawMessage:
    return RawMessage(
        message_id=MessageId(str(number)),
        sender=who.peer,
        created_at_ms=created_at_ms,
        reply_token=ReplyToken("T"),
        raw=raw,
        content=content.encode("utf-8", "surrogatepass"),
    )


def batch(*messages: RawMessage, cursor: str | None = "c1") -> Batch:
    return Batch(messages=messages, cursor=Cursor(cursor) if cursor is not None else None, hold_s=None)


def reopened(store: Store, path: Path) -> Store:
    store.close()
    again, warnings = Store.open(path)
    assert warnings == ()
    return again


def recorded(store: Store, number: int | str = 1, who: PeerKey = ALICE, at: float = 10.0) -> MessageRow:
    (row,) = store.record_batch(who.account, batch(said(number, who, content=f"text {number}")), at).rows
    return row


def heard(store: Store, number: int | str, text: str, who: PeerKey = ALICE, at: float = 10.0) -> MessageRow:
    row = recorded(store, number, who, at)
    store.apply(
        [
            Heard(row.row, who, at, ReplyToken(f"T{number}"), "en", text),
            SetMessage(row.row, MessageState.QUEUED, at),
        ]
    )
    return row


def answered(store: Store, number: int, text: str, *parts: str, at: float = 10.0) -> MessageRow:
    row = heard(store, number, text, at=at)
    store.apply([SetMessage(row.row, MessageState.RUNNING, at, Generation(1)), StartedTurn(ALICE, at)])
    for place, part in enumerate(parts):
        key = SendKey(f"k{number}-{place}")
        store.apply([AddPart(key, ALICE, row.row, PartKind.REPLY, part, at)])
        store.apply([SetPart(key, PartState.SENDING, at, spend=1)])
        store.apply([SetPart(key, PartState.ACCEPTED, at, message_id=MessageId(f"s{number}-{place}"))])
    store.apply([SetMessage(row.row, MessageState.ANSWERED, at)])
    return row


# --- batches and replays --------------------------------------------------------------------------------------


def test_a_batch_is_kept_with_its_cursor_and_order(store: Store, path: Path) -> None:
    kept = store.record_batch(OWNER, batch(said(1, content="a"), said(2, BOB, content="b"), cursor="c9"), at=5.0)

    again = reopened(store, path)
    assert again.open_messages() == kept.rows
    assert [row.who for row in kept.rows] == [ALICE, BOB]
    assert again.cursor(OWNER) == "c9"
    assert again.counters()["received"] == 2


@pytest.mark.parametrize("cursor", [None, ""])
def test_an_empty_cursor_never_overwrites(store: Store, cursor: str | None) -> None:
    store.record_batch(OWNER, batch(said(1), cursor="c9"), at=5.0)

    store.record_batch(OWNER, batch(said(2, content="x"), cursor=cursor), at=6.0)

    assert store.cursor(OWNER) == "c9"


def test_b003_a_message_handed_over_again_is_counted_and_not_kept_again(store: Store) -> None:
    first = store.record_batch(OWNER, batch(said(7450000000000000123), said(7450000000000000123)), at=5.0)

    again = store.record_batch(OWNER, batch(said(7450000000000000123)), at=6.0)

    assert (len(first.rows), first.replayed) == (1, 1)
    assert (len(again.rows), again.replayed) == (0, 1)
    assert store.counters()["replayed"] == 2


@pytest.mark.parametrize("later_s", [61 * 60.0, 23 * 3600.0, 6.9 * DAY])
def test_b038_ids_survive_a_restart_and_pruned_texts_for_a_week(store: Store, path: Path, later_s: float) -> None:
    row = recorded(store, 7, at=5.0)
    store.apply([SetMessage(row.row, MessageState.COMMAND, 5.0)])
    store = reopened(store, path)
    store.prune(5.0 + later_s, keep_days=0)

    replay = store.record_batch(OWNER, batch(said(7, content="changed", created_at_ms=2)), at=5.0 + later_s)

    assert store.message(row.row) is None
    assert (replay.rows, replay.replayed) == ((), 1)


def test_b038_the_same_text_written_again_is_a_new_message(store: Store) -> None:
    store.record_batch(OWNER, batch(said(1, content="hi", created_at_ms=1000)), at=5.0)

    again = store.record_batch(OWNER, batch(said(2, content="hi", created_at_ms=1001)), at=6.0)

    assert len(again.rows) == 1


def test_another_id_with_sender_content_and_time_all_equal_is_a_replay(store: Store) -> None:
    store.record_batch(OWNER, batch(said(1, content="hi")), at=5.0)

    again = store.record_batch(OWNER, batch(said(2, content="hi"), said(3, BOB, content="hi")), at=6.0)

    assert [row.who for row in again.rows] == [BOB]
    assert again.replayed == 1


@pytest.mark.parametrize(("content", "created_at_ms"), [("", 1000), ("hi", None), ("hi", -1), ("hi", 2**80)])
def test_without_content_or_a_plausible_time_only_the_id_is_compared(
    store: Store, content: str, created_at_ms: int | None
) -> None:
    both = batch(
        said(1, content=content, created_at_ms=created_at_ms), said(2, content=content, created_at_ms=created_at_ms)
    )

    assert len(store.record_batch(OWNER, both, at=5.0).rows) == 2


def test_b056_two_people_and_two_accounts_may_share_an_id(store: Store) -> None:
    store.sign_in(OTHER, "bot-2@im.bot", "", None, at=2.0)
    both = batch(said(42), said(42, BOB))

    first = store.record_batch(OWNER, both, at=5.0)
    elsewhere = store.record_batch(OTHER, both, at=5.0)
    replayed = store.record_batch(OWNER, both, at=6.0)

    assert (len(first.rows), len(elsewhere.rows), len(replayed.rows)) == (2, 2, 0)


@pytest.mark.parametrize(
    "ids",
    [
        ("9007199254740992", "9007199254740993"),
        ("18446744073709551615", "7450000000000000123"),
        ("42", "0042"),
        ("1e3", "1000"),
        ("\ud800", "\ud801"),
        ("a\x00b", "a\x00c"),
        ("", " "),
    ],
)
def test_b068_ids_are_text_and_never_meet(store: Store, path: Path, ids: tuple[str, str]) -> None:
    first = store.record_batch(OWNER, batch(said(ids[0]), said(ids[1])), at=5.0)

    store = reopened(store, path)
    again = store.record_batch(OWNER, batch(said(ids[0]), said(ids[1])), at=6.0)

    assert [row.message_id for row in first.rows] == list(ids)
    assert [row.message_id for row in store.open_messages()] == list(ids)
    assert again.replayed == 2


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    text=st.text(st.characters(exclude_categories=())),
    name=st.text(st.characters(exclude_categories=())),
    raw=st.binary(),
)
def test_whatever_people_write_comes_back_as_it_was(store: Store, text: str, name: str, raw: bytes) -> None:
    who = PeerKey(OWNER, PeerId(name))
    fresh = MessageId(str(store.counters()["received"]))
    (row,) = store.record_batch(OWNER, batch(said(fresh, who, raw=raw)), at=5.0).rows

    store.apply([Heard(row.row, who, 5.0, ReplyToken(text), "zh", text, late=True)])

    kept = store.message(row.row)
    assert kept == replace(row, text=text, late=True)
    assert kept.raw == raw
    assert store.peer(who).reply_token == text
    assert store.peer(who).who == who


deliveries = st.lists(
    st.lists(
        st.builds(
            said,
            number=st.integers(0, 6),
            who=st.sampled_from([ALICE, BOB]),
            content=st.sampled_from(["", "a", "b"]),
            created_at_ms=st.sampled_from([None, 1000, 2000]),
        ),
        max_size=6,
    ),
    max_size=6,
)


@settings(max_examples=40, deadline=None)
@given(batches=deliveries)
def test_every_message_is_kept_once_however_it_is_handed_out(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[RawMessage]]
) -> None:
    """Against the rule in its plainest words, over a restart after each batch."""
    path = tmp_path_factory.mktemp("journal") / "state.db"
    handed_out: list[RawMessage] = []
    expected: list[tuple[str, str]] = []
    for messages in batches:
        store, _ = Store.open(path)
        store.record_batch(OWNER, batch(*messages), at=5.0)
        store.close()
        for message in messages:
            before = [other for other in handed_out if other.sender == message.sender]
            same_id = any(other.message_id == message.message_id for other in before)
            # What an id brought first is what it stands for: a replay with other content teaches nothing new.
            firsts = {other.message_id: other for other in reversed(before)}.values()
            same_words = any(
                (other.content, other.created_at_ms) == (message.content, message.created_at_ms) for other in firsts
            )
            tellable = message.content and message.created_at_ms is not None
            if not same_id and not (tellable and same_words):
                expected.append((message.sender, message.message_id))
            handed_out.append(message)

    store, _ = Store.open(path)
    kept = [(row.who.peer, row.message_id) for row in store.open_messages()]
    replayed = store.counters()["replayed"]
    store.close()

    assert kept == expected
    assert replayed == len(handed_out) - len(expected)


def test_a_dialog_ends_once_and_what_was_open_at_the_start_is_lost(store: Store) -> None:
    asked = [AddDialog(ALICE, 7, DialogId(name), "select", "question", name, float(at)) for at, name in enumerate("ab")]
    store.apply(asked)
    store.apply([EndDialog(7, DialogId("a"), "answered", 5.0)])
    store.apply([EndDialog(7, DialogId("a"), "turn_over", 6.0)])

    assert store.end_lost_dialogs(9.0) == 1
    assert store.end_lost_dialogs(10.0) == 0

    assert [(one.title, one.outcome, one.ended_at) for one in store.dialogs(7)] == [
        ("a", "answered", 5.0),
        ("b", "lost", 9.0),
    ]


def test_closed_dialogs_are_pruned_with_the_texts(store: Store) -> None:
    store.apply([AddDialog(ALICE, 7, DialogId(name), "select", "question", "t", 1.0) for name in ("a", "b")])
    store.apply([EndDialog(7, DialogId("a"), "answered", 5.0)])

    store.prune(31 * DAY, keep_days=30)

    assert [one.name for one in store.dialogs(7)] == ["b"]


def test_a_rule_is_kept_once_and_its_number_is_never_given_again(store: Store) -> None:
    store.apply([AddRule(ALICE, "bash ls", 1.0), AddRule(ALICE, "bash ls", 2.0), AddRule(BOB, "bash ls", 3.0)])
    (rule,), (other,) = store.rules(ALICE), store.rules(BOB)

    store.apply([RevokeRule(ALICE, other.number)])
    assert store.rules(BOB) == (other,), "somebody else's"
    store.apply([RevokeRule(BOB, other.number), AddRule(BOB, "bash ls", 4.0)])

    assert (rule.rule, rule.at) == ("bash ls", 1.0)
    assert store.rules(BOB)[0].number > other.number


def test_the_first_new_row_of_a_batch_counts_as_being_handled(store: Store) -> None:
    store.record_batch(OWNER, batch(said(1)), at=5.0)

    rows = store.record_batch(OWNER, batch(said(1), said(2, content="b"), said(3, content="c")), at=6.0).rows

    assert [row.handled for row in rows] == [1, 0]


def test_handling_is_counted_with_the_outcome_of_the_message_before(store: Store, path: Path) -> None:
    first, second = store.record_batch(OWNER, batch(said(1), said(2, content="b")), at=5.0).rows

    store.apply([SetMessage(first.row, MessageState.COMMAND, 6.0), BeginHandling(second.row)])

    store = reopened(store, path)
    assert [(row.row, row.handled) for row in store.open_messages()] == [(second.row, 1)]
    store.apply([PutBack(second.row)])
    assert [row.handled for row in store.open_messages()] == [0]


# --- all or none ----------------------------------------------------------------------------------------------


def test_a_list_of_changes_is_kept_whole_or_not_at_all(store: Store) -> None:
    row = heard(store, 1, "hi")
    before = (store.message(row.row), store.peer(ALICE), store.counters(), store.open_parts())

    with pytest.raises(ValueError, match="no message 999"):
        store.apply(
            [
                SetMessage(row.row, MessageState.STOPPED, 20.0),
                AddPart(SendKey("k"), ALICE, row.row, PartKind.OUTCOME, "stopped", 20.0),
                Bump("workers_started"),
                SetGeneration(ALICE, Generation(4)),
                SetMessage(999, MessageState.STOPPED, 20.0),
            ]
        )

    assert (store.message(row.row), store.peer(ALICE), store.counters(), store.open_parts()) == before


def test_a_send_key_is_stored_once(store: Store) -> None:
    store.apply([AddPart(SendKey("k"), ALICE, None, PartKind.COMMAND, "a", 1.0)])

    with pytest.raises(sqlite3.IntegrityError):
        store.apply([AddPart(SendKey("k"), ALICE, None, PartKind.COMMAND, "b", 1.0)])

    assert [part.text for part in store.open_parts()] == ["a"]


def test_an_unknown_counter_or_part_is_a_mistake(store: Store) -> None:
    with pytest.raises(ValueError, match="cakes"):
        store.apply([Bump("cakes")])
    with pytest.raises(ValueError, match="no part"):
        store.apply([SetPart(SendKey("none"), PartState.SENDING, 1.0)])


# --- counters -------------------------------------------------------------------------------------------------


def test_a_counter_follows_each_outcome_once(store: Store) -> None:
    row = heard(store, 1, "hi")

    for _ in range(2):
        store.apply([SetMessage(row.row, MessageState.ANSWERED, 20.0)])

    assert store.counters()["turns_answered"] == 1
    assert set(store.counters()) == set(COUNTERS)


def test_every_final_state_of_a_turn_has_a_counter_and_survives_a_restart(store: Store, path: Path) -> None:
    counted = {
        MessageState.REFUSED: "refused",
        MessageState.TURNED_AWAY: "turned_away",
        MessageState.STOPPED: "turns_stopped",
        MessageState.EMPTY: "turns_empty",
        MessageState.FAILED: "turns_failed",
        MessageState.LIMITED: "turns_limited",
        MessageState.DECLINED: "turns_declined",
        MessageState.INTERRUPTED: "turns_interrupted",
        MessageState.DROPPED: "dropped",
        MessageState.DEAD: "dead",
    }
    for number, state in enumerate(counted):
        store.apply([SetMessage(recorded(store, number).row, state, 20.0)])
    store = reopened(store, path)

    assert {name: store.counters()[name] for name in counted.values()} == dict.fromkeys(counted.values(), 1)
    assert store.counters()["received"] == len(counted)


def test_parts_are_counted_by_what_became_of_them(store: Store) -> None:
    for place, state in enumerate([PartState.ACCEPTED, PartState.UNCONFIRMED, PartState.REJECTED, PartState.PARKED]):
        key = SendKey(f"k{place}")
        store.apply([AddPart(key, ALICE, None, PartKind.REPLY, "x", 1.0), SetPart(key, state, 2.0)])

    counters = store.counters()
    assert (counters["parts_sent"], counters["sends_unconfirmed"], counters["sends_rejected"]) == (1, 1, 1)


# --- parts ----------------------------------------------------------------------------------------------------


def test_parts_keep_their_order_key_attempts_and_budget(store: Store, path: Path) -> None:
    row = heard(store, 1, "hi")
    store.apply([AddPart(SendKey(f"k{n}"), ALICE, row.row, PartKind.REPLY, str(n), 1.0) for n in range(3)])
    store.apply([SetPart(SendKey("k0"), PartState.SENDING, 2.0, spend=1)])
    store.apply([SetPart(SendKey("k0"), PartState.SENDING, 3.0)])
    store.apply([SetPart(SendKey("k1"), PartState.PARKED, 3.0)])

    store = reopened(store, path)
    parts = store.open_parts()
    assert [(part.send_key, part.state, part.attempts) for part in parts] == [
        ("k0", PartState.SENDING, 2),
        ("k1", PartState.PARKED, 0),
        ("k2", PartState.PENDING, 0),
    ]
    assert [part.order for part in parts] == sorted(part.order for part in parts)
    assert store.peer(ALICE).spent == 1


def test_a_new_message_refills_the_budget_and_brings_its_token(store: Store) -> None:
    answered(store, 1, "hi", "a", "b")
    assert store.peer(ALICE).spent == 2

    heard(store, 2, "again")

    assert (store.peer(ALICE).spent, store.peer(ALICE).reply_token) == (0, "T2")


def test_parts_sent_since_the_peer_wrote_or_still_on_their_way_count_against_the_new_budget(store: Store) -> None:
    """As the service counts: from the moment they wrote, which may be long before we hear of it."""
    row = heard(store, 1, "hi", at=1.0)
    for number, landed in enumerate((2.0, 4.0, 6.0)):
        key = SendKey(f"k{number}")
        store.apply(
            [AddPart(key, ALICE, row.row, PartKind.REPLY, "x", 1.0), SetPart(key, PartState.SENDING, 1.0, spend=1)]
        )
        store.apply([SetPart(key, PartState.ACCEPTED, landed, message_id=MessageId(f"s{number}"))])
    store.apply([AddPart(SendKey("k3"), ALICE, row.row, PartKind.REPLY, "x", 1.0)])
    store.apply([SetPart(SendKey("k3"), PartState.SENDING, 6.5, spend=1)])
    second = recorded(store, 2, at=7.0)

    store.apply([Heard(second.row, ALICE, 7.0, None, "en", written_at=3.0)])

    assert store.peer(ALICE).spent == 3  # two landed since, one is on its way


def test_b027_a_message_without_a_token_leaves_the_last_one(store: Store) -> None:
    heard(store, 1, "hi")
    row = recorded(store, 2)

    store.apply([Heard(row.row, ALICE, 11.0, None, "zh")])

    assert (store.peer(ALICE).reply_token, store.peer(ALICE).language) == ("T1", "zh")


# --- strangers ------------------------------------------------------------------------------------------------


def test_b013_of_a_refused_stranger_only_a_count_is_kept(store: Store) -> None:
    row = store.record_batch(OWNER, batch(said(1, BOB, raw=b'{"context_token":"SECRET"}')), at=5.0).rows[0]

    store.apply([SetMessage(row.row, MessageState.REFUSED, 6.0), CountRefused(BOB, 6.0)])

    kept = store.message(row.row)
    assert kept is not None
    assert (kept.raw, kept.text) == (b"", "")
    assert store.peers() == ()
    assert store.peer(BOB).reply_token is None
    assert [(r.who, r.count, r.last_at) for r in store.refused()] == [(BOB, 1, 6.0)]


def test_b059_at_most_a_thousand_strangers_are_remembered_the_latest(store: Store) -> None:
    def stranger(number: int) -> PeerKey:
        return PeerKey(OWNER, PeerId(f"s{number}"))

    store.apply([CountRefused(stranger(number), float(number)) for number in range(1200)])
    store.apply([CountRefused(stranger(1199), 2000.0)])

    kept = store.refused()
    assert len(kept) == 1000
    assert (kept[0].who, kept[0].count) == (stranger(1199), 2)
    assert kept[-1].who == stranger(200)
    store.apply([ForgetRefused(stranger(1199))])
    assert store.refused()[0].who == stranger(1198)


# --- accounts -------------------------------------------------------------------------------------------------


def test_the_first_account_is_the_operators_and_later_ones_are_guests(store: Store) -> None:
    store.sign_in(OTHER, "bot-2@im.bot", "work", None, at=2.0)
    store.sign_in(AccountId("third"), "bot-3@im.bot", "work", Role.OPERATOR, at=3.0)

    assert [(a.account, a.name, a.role) for a in store.accounts()] == [
        (OWNER, "default", Role.OPERATOR),
        (OTHER, "work", Role.GUEST),
        ("third", "work-2", Role.OPERATOR),
    ]


def test_the_same_person_signing_in_again_keeps_all_but_cursor_and_tokens(store: Store) -> None:
    row = heard(store, 1, "hi")
    store.apply(
        [
            SetSession(ALICE, SessionId("s1"), 11.0),
            AddPart(SendKey("k"), ALICE, row.row, PartKind.REPLY, "parked", 11.0, PartState.PARKED),
        ]
    )
    store.set_paused(OWNER, True)
    store.set_expired(OWNER, True)
    store.sign_in(OTHER, "bot-2@im.bot", "", None, at=2.0)

    renewed = store.sign_in(OWNER, "bot-9@im.bot", "", None, at=50.0)

    assert (renewed.bot_id, renewed.name, renewed.role) == ("bot-9@im.bot", "default", Role.OPERATOR)
    assert (renewed.paused, renewed.expired, renewed.logged_in_at) == (False, False, 50.0)
    assert (store.cursor(OWNER), store.peer(ALICE).reply_token, store.peer(ALICE).last_inbound_at) == ("", None, None)
    assert store.peer(ALICE).session_id == "s1"
    assert [m.state for m in store.open_messages()] == [MessageState.QUEUED]
    assert [p.state for p in store.open_parts()] == [PartState.PARKED]
    assert [a.account for a in store.accounts()] == [OWNER, OTHER]


def test_a_pause_survives_a_restart(store: Store, path: Path) -> None:
    store.set_paused(OWNER, True)

    assert [a.paused for a in reopened(store, path).accounts()] == [True]


def test_signing_out_drops_what_waits_and_tells_whose_it_was(store: Store) -> None:
    store.sign_in(OTHER, "bot-2@im.bot", "", None, at=2.0)
    elsewhere = recorded(store, 5, PeerKey(OTHER, PeerId("carol")))
    waiting = heard(store, 1, "hi")
    unread = recorded(store, 2, BOB)

    dropped = store.sign_out(OWNER, at=60.0)

    assert [(m.row, m.text, m.state) for m in dropped] == [(waiting.row, "hi", MessageState.DROPPED)]
    assert [m.row for m in store.open_messages()] == [elsewhere.row]
    after = store.message(unread.row)
    assert after is not None and after.state is MessageState.DROPPED
    assert store.counters()["dropped"] == 2
    assert (store.cursor(OWNER), store.peer(ALICE).reply_token) == ("", None)
    assert [a.account for a in store.accounts()] == [OTHER]
    assert store.peer(ALICE).last_inbound_at is not None


def test_the_clock_offset_is_the_smallest_of_the_last_fifty_since_login(store: Store) -> None:
    def offset() -> int | None:
        return store.clock_offset_ms(OWNER)

    assert offset() is None
    store.record_batch(OWNER, batch(said("first", created_at_ms=9_900)), at=10.0)
    assert offset() == 100
    store.record_batch(OWNER, batch(*(said(n, content=str(n), created_at_ms=19_000 + n) for n in range(49))), at=20.0)
    assert offset() == 100
    store.record_batch(OWNER, batch(said("one more", created_at_ms=29_500)), at=30.0)
    assert offset() == 500
    store.record_batch(OWNER, batch(said("ahead", created_at_ms=40_250), said("none", created_at_ms=None)), at=40.0)
    assert offset() == -250
    store.sign_in(OWNER, "bot-9@im.bot", "", None, at=50.0)
    assert offset() is None


# --- peers ----------------------------------------------------------------------------------------------------


def test_a_peer_never_heard_of_has_the_defaults(store: Store) -> None:
    nobody = store.peer(BOB)

    assert (nobody.language, nobody.generation, nobody.spent, nobody.turns_at, nobody.uid) == ("en", 0, 0, (), None)
    assert store.peers() == ()


def test_the_starts_of_the_last_hour_are_kept_and_a_clock_set_back_frees(store: Store) -> None:
    heard(store, 1, "hi")
    store.apply([StartedTurn(ALICE, 1000.0), StartedTurn(ALICE, 2000.0), StartedTurn(BOB, 2100.0)])
    store.apply([StartedTurn(ALICE, 4700.0)])
    assert store.peer(ALICE).turns_at == (2000.0, 4700.0)

    store.apply([StartedTurn(ALICE, 500.0)])

    assert store.peer(ALICE).turns_at == (500.0,)
    assert (store.peer(ALICE).turns, store.peer(BOB).turns) == (4, 1)


def test_a_started_turn_takes_the_interrupted_note_with_it(store: Store) -> None:
    store.apply([SetInterruptedNote(ALICE, "look first")])
    assert store.peer(ALICE).interrupted_note == "look first"

    store.apply([StartedTurn(ALICE, 10.0)])

    assert store.peer(ALICE).interrupted_note == ""


def test_a_session_keeps_its_start_until_another_begins(store: Store) -> None:
    store.apply([SetSession(ALICE, SessionId("s1"), 10.0)])
    store.apply([SetSession(ALICE, SessionId("s1"), 20.0)])
    assert store.peer(ALICE).session_started_at == 10.0

    store.apply([SetSession(ALICE, None, 30.0)])
    assert (store.peer(ALICE).session_id, store.peer(ALICE).session_started_at) == (None, None)

    store.apply([SetSession(ALICE, SessionId("s2"), 40.0), SetGeneration(ALICE, Generation(7))])
    assert (store.peer(ALICE).session_started_at, store.peer(ALICE).generation) == (40.0, 7)


def test_a_uid_is_for_life_and_never_used_twice(store: Store, path: Path) -> None:
    first = store.uid_for(ALICE, 210_000)
    second = store.uid_for(BOB, 210_000)
    store = reopened(store, path)

    assert (first, second) == (210_000, 210_001)
    assert store.uid_for(ALICE, 500_000) == first
    assert store.uid_for(PeerKey(OTHER, ALICE.peer), 500_000) == 500_000
    assert store.uid_for(PeerKey(OTHER, BOB.peer), 210_000) == 500_001
    assert store.uid_for(PeerKey(OTHER, PeerId("third")), 210_000, had=first) == 500_002
    assert store.uid_for(PeerKey(OTHER, PeerId("fourth")), 210_000, had=400_000) == 400_000
    assert store.peer(ALICE).uid == first


# --- history --------------------------------------------------------------------------------------------------


def test_history_shows_prompts_and_joined_replies_oldest_first(store: Store) -> None:
    answered(store, 1, "first?", "one", "two")
    command = recorded(store, 2)
    store.apply(
        [
            Heard(command.row, ALICE, 11.0, None, "en", "/status"),
            SetMessage(command.row, MessageState.COMMAND, 11.0),
            AddPart(SendKey("c"), ALICE, command.row, PartKind.COMMAND, "idle", 11.0),
        ]
    )
    answered(store, 3, "second?", "three", at=12.0)
    heard(store, 4, "waiting", at=13.0)
    heard(store, 5, "somebody else", BOB, at=13.0)

    lines = store.history(ALICE, 10)

    assert lines == (
        HistoryRow(True, "first?", 10.0, ""),
        HistoryRow(False, "one\ntwo", 10.0, ""),
        HistoryRow(True, "second?", 12.0, ""),
        HistoryRow(False, "three", 12.0, ""),
        HistoryRow(True, "waiting", 13.0, ""),
    )
    assert store.history(ALICE, 2) == lines[-2:]
    assert store.history(ALICE, 0) == ()


@pytest.mark.parametrize(
    ("state", "flag"),
    [
        (PartState.REJECTED, "rejected"),
        (PartState.PARKED, "parked"),
        (PartState.PENDING, "pending"),
        (PartState.SENDING, "pending"),
        (PartState.UNCONFIRMED, "unconfirmed"),
        (PartState.ACCEPTED, ""),
    ],
)
def test_b022_an_answer_that_has_not_arrived_is_flagged_until_it_does(
    store: Store, state: PartState, flag: str
) -> None:
    answered(store, 1, "what did you say?", "this", "and that")
    store.apply([SetPart(SendKey("k1-1"), state, 20.0)])

    assert store.history(ALICE, 1)[0].flag == flag

    store.apply([SetPart(SendKey("k1-1"), PartState.ACCEPTED, 30.0)])
    assert store.history(ALICE, 1)[0].flag == ""


def test_words_dropped_by_a_stop_do_not_show(store: Store) -> None:
    answered(store, 1, "go", "said", "unsaid")
    store.apply([SetPart(SendKey("k1-1"), PartState.DROPPED, 20.0)])

    assert store.history(ALICE, 1)[0].text == "said"


def test_a_fresh_conversation_starts_an_empty_history_and_takes_what_waits(store: Store) -> None:
    answered(store, 1, "old", "old answer")
    waiting = heard(store, 2, "waits over the change")

    store.apply([SetSession(ALICE, None, 30.0)])
    assert [line.text for line in store.history(ALICE, 20)] == ["waits over the change"]

    store.apply(
        [SetMessage(waiting.row, MessageState.RUNNING, 31.0), SetMessage(waiting.row, MessageState.FAILED, 32.0)]
    )
    assert [line.text for line in store.history(ALICE, 20)] == ["waits over the change"]


def test_a_quoted_id_is_found_among_what_people_and_the_bot_said(store: Store) -> None:
    answered(store, 1, "question", "answer")

    assert store.message_text(OWNER, MessageId("1")) == "question"
    assert store.message_text(OWNER, MessageId("s1-0")) == "answer"
    assert store.message_text(OTHER, MessageId("1")) is None
    assert store.message_text(OWNER, MessageId("none")) is None


# --- pruning --------------------------------------------------------------------------------------------------


def test_pruning_takes_closed_messages_with_their_parts_and_leaves_open_ones(store: Store) -> None:
    old = answered(store, 1, "old", "answer", at=10.0)
    waiting = heard(store, 2, "still waits", at=10.0)
    young = answered(store, 3, "young", "answer", at=10.0 + 20 * DAY)

    store.prune(10.0 + 31 * DAY, keep_days=30)

    assert store.message(old.row) is None
    assert store.message_text(OWNER, MessageId("s1-0")) is None
    assert [row.row for row in store.open_messages()] == [waiting.row]
    assert store.message(young.row) is not None
    assert [line.text for line in store.history(ALICE, 20)] == ["still waits", "young", "answer"]


def test_a_part_never_fetched_for_a_week_becomes_a_dead_letter_once(store: Store) -> None:
    row = heard(store, 1, "hi")
    store.apply([AddPart(SendKey("k"), ALICE, row.row, PartKind.REPLY, "parked", 10.0, PartState.PARKED)])

    assert store.prune(10.0 + 6.9 * DAY, keep_days=30) == ()
    dead = store.prune(10.0 + 7.1 * DAY, keep_days=30)

    assert [part.text for part in dead] == ["parked"]
    assert store.open_parts() == ()
    assert store.prune(10.0 + 7.2 * DAY, keep_days=30) == ()


def test_row_numbers_are_never_used_again(store: Store) -> None:
    row = answered(store, 1, "old", at=10.0)
    store.prune(10.0 + 31 * DAY, keep_days=30)

    assert recorded(store, 2).row > row.row


def test_b114_a_closed_turn_costs_under_a_kibibyte_after_pruning(store: Store, path: Path) -> None:
    for number in range(300):
        answered(store, number, "a question of usual length", "an answer that is somewhat longer " * 20, at=10.0)

    store.prune(10.0 + 6 * DAY, keep_days=1)
    store.prune(10.0 + 6 * DAY, keep_days=1)

    assert path.stat().st_size / 300 < 1024
    assert path.with_name("state.db-wal").stat().st_size == 0
    assert b"somewhat longer" not in path.read_bytes()


# --- the disk -------------------------------------------------------------------------------------------------


def test_the_file_is_private_and_durable(store: Store, path: Path) -> None:
    for file in (path, path.with_name("state.db-wal")):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600

    assert store._db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert store._db.execute("PRAGMA synchronous").fetchone() == (2,)


def test_a_file_open_to_others_is_closed(store: Store, path: Path) -> None:
    store.close()
    path.chmod(0o644)

    reopened, _ = Store.open(path)
    reopened.close()

    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "content",
    [b"\x00" * 107, b'{"get_upd', b"[]", b"SQLite format 3\x00" + b"\xff" * 4096, b"SQLite format 3\x00"],
    ids=["zeros", "torn", "json", "noise", "header"],
)
def test_b006_a_damaged_file_is_set_aside_and_named_once(path: Path, content: bytes) -> None:
    path.write_bytes(content)

    store, warnings = Store.open(path)
    store.sign_in(OWNER, "bot", "", None, 1.0)
    store.record_batch(OWNER, batch(said(1)), 2.0)
    store.close()

    (aside,) = path.parent.glob("state.db.damaged-*")
    assert aside.read_bytes() == content
    assert len(warnings) == 1
    assert aside.name in warnings[0]
    again, warnings = Store.open(path)
    assert warnings == ()
    assert len(again.open_messages()) == 1
    again.close()


@pytest.mark.parametrize("kind", ["empty", "unreadable"])
def test_b006_an_empty_or_closed_file_is_simply_used(path: Path, kind: str) -> None:
    path.touch(mode=0o000 if kind == "unreadable" else 0o600)

    store, warnings = Store.open(path)
    store.close()

    assert warnings == ()


def test_b006_a_folder_in_its_place_is_set_aside(path: Path) -> None:
    (path / "inner").mkdir(parents=True)

    store, warnings = Store.open(path)
    store.close()

    assert len(warnings) == 1
    assert path.is_file()


@pytest.mark.parametrize("damage", ["cut off", "overwritten"])
def test_a_file_whole_at_its_head_only_is_set_aside(store: Store, path: Path, damage: str) -> None:
    for number in range(200):
        recorded(store, number)
    store.close()
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2] if damage == "cut off" else whole[:4096] + b"\xa5" * (len(whole) - 4096))

    again, warnings = Store.open(path)

    assert len(warnings) == 1
    assert again.accounts() == ()
    again.close()


PAGE = 4096
WAL_HEAD, WAL_FRAME = 32, 24 + PAGE


def of_a_killed_bridge(folder: Path) -> Path:
    """A journal as SIGKILL leaves it: part of it in the file, the rest in the log beside it."""
    store, _ = Store.open(folder / "live.db")
    for number in range(30):
        answered(store, number, "a question", "an answer of some length " * 20)
    store._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    for number in range(30, 36):
        answered(store, number, "a question", "an answer of some length " * 20)
    for suffix in ("", "-wal"):
        shutil.copy(folder / f"live.db{suffix}", folder / f"killed.db{suffix}")
    store.close()
    return folder / "killed.db"


def usable(path: Path) -> tuple[int, int]:
    """Open it and go on with it: how many messages stand in it, and how often it was set aside."""
    store, warnings = Store.open(path)
    try:
        known = len(store._messages("1 ORDER BY row"))
        store.record_batch(OWNER, batch(said("afterwards")), 99.0)
        assert store.message_text(OWNER, MessageId("nobody's")) is None
    finally:
        store.close()
    return known, len(warnings)


def test_cut_at_any_page_or_with_any_page_ruined_the_journal_opens_and_takes_messages(tmp_path: Path) -> None:
    killed = of_a_killed_bridge(tmp_path)
    whole = killed.read_bytes()
    set_aside = 0
    for page in range(len(whole) // PAGE):
        for number, content in enumerate(
            (whole[: page * PAGE], whole[: page * PAGE] + b"\xa5" * PAGE + whole[(page + 1) * PAGE :])
        ):
            path = tmp_path / f"{page}-{number}" / "state.db"
            path.parent.mkdir()
            path.write_bytes(content)

            known, times = usable(path)

            assert times <= 1 and known <= 36
            set_aside += times
            shutil.rmtree(path.parent)
    assert set_aside > len(whole) // PAGE


def test_a_log_cut_at_any_frame_leaves_what_was_committed_before(tmp_path: Path) -> None:
    killed = of_a_killed_bridge(tmp_path)
    log = killed.with_name("killed.db-wal").read_bytes()
    seen = []
    for end in [0, WAL_HEAD, *range(WAL_HEAD + WAL_FRAME, len(log) + 1, WAL_FRAME), len(log)]:
        for torn in (0, 100) if end % 5 == 0 else (0,):
            path = tmp_path / f"{end}-{torn}" / "state.db"
            path.parent.mkdir()
            shutil.copy(killed, path)
            path.with_name("state.db-wal").write_bytes(log[: max(0, end - torn)])

            known, times = usable(path)

            assert times == 0
            assert 30 <= known <= 36
            if not torn:
                seen.append(known)
            shutil.rmtree(path.parent)
    assert seen[0] == 30 and seen[-1] == 36
    assert seen == sorted(seen)


def test_two_damaged_files_of_one_second_lie_side_by_side_with_their_companions(path: Path) -> None:
    for content in (b"first", b"second"):
        path.write_bytes(content)
        path.with_name("state.db-wal").write_bytes(content + b" wal")
        store, warnings = Store.open(path)
        store.close()
        assert len(warnings) == 1

    for content in (b"first", b"second"):
        (aside,) = (file for file in path.parent.glob("state.db.damaged-*") if file.read_bytes() == content)
        assert aside.with_name(aside.name + "-wal").read_bytes() == content + b" wal"


def test_the_database_of_another_program_is_set_aside(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE recipes (name TEXT)")
        db.execute("PRAGMA user_version = 77")
    db.close()

    store, warnings = Store.open(path)
    store.close()

    assert len(warnings) == 1


def test_b101_a_newer_journal_is_refused_and_no_byte_of_it_changes(store: Store, path: Path) -> None:
    recorded(store, 1)
    store._db.execute("PRAGMA user_version = 2")
    store.close()
    before = {file.name: file.read_bytes() for file in path.parent.iterdir()}

    with pytest.raises(BridgeError, match=r"state\.db: written by a newer"):
        Store.open(path)

    assert {file.name: file.read_bytes() for file in path.parent.iterdir()} == before


def test_b073_a_locked_file_costs_nothing_but_another_try(store: Store, path: Path) -> None:
    store._db.execute("PRAGMA busy_timeout = 50")
    locker = sqlite3.connect(path, isolation_level=None)
    locker.execute("BEGIN IMMEDIATE")

    with pytest.raises(JournalUnavailable, match="locked"):
        store.record_batch(OWNER, batch(said(1)), at=5.0)
    assert store.open_messages() == ()

    locker.execute("ROLLBACK")
    locker.close()
    assert len(store.record_batch(OWNER, batch(said(1)), at=6.0).rows) == 1


def test_b073_a_reader_never_blocks_the_writer(store: Store, path: Path) -> None:
    recorded(store, 1)
    reader = sqlite3.connect(path, isolation_level=None)
    reader.execute("BEGIN")
    assert reader.execute("SELECT count(*) FROM message").fetchone() == (1,)

    recorded(store, 2)
    started = time.monotonic()
    store.prune(20.0, keep_days=30)

    assert time.monotonic() - started < 1.5  # less than what a writer waits for another one
    assert reader.execute("SELECT count(*) FROM message").fetchone() == (1,)
    reader.close()


def test_b067_a_full_database_keeps_nothing_and_goes_on_once_there_is_room(store: Store) -> None:
    (pages,) = store._db.execute("PRAGMA page_count").fetchone()
    store._db.execute(f"PRAGMA max_page_count = {pages}")
    big = batch(said(1), said(2, content="b", raw=b"x" * 200_000), cursor="c2")

    for _ in range(3):
        with pytest.raises(JournalUnavailable, match="full"):
            store.record_batch(OWNER, big, at=5.0)
    assert (store.cursor(OWNER), store.open_messages(), store.counters()["received"]) == ("", (), 0)

    store._db.execute("PRAGMA max_page_count = 1000000")
    assert len(store.record_batch(OWNER, big, at=6.0).rows) == 2


def test_b067_a_disk_that_takes_no_more_bytes_and_then_does_again(tmp_path: Path) -> None:
    """The kernel itself refuses the writes (RLIMIT_FSIZE), in a process of its own."""
    script = """
        import resource, signal, sys
        from pathlib import Path
        from supervisor.store import JournalUnavailable, Store
        from supervisor.channels.base import Batch, RawMessage

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        store, _ = Store.open(Path(sys.argv[1]))
        store.sign_in("owner", "bot", "", None, 1.0)
        full = Batch((RawMessage("1", "alice", 1, None, b"x" * 500_000),), "c2", None)
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, hard))
        for _ in range(2):
            try:
                store.record_batch("owner", full, 2.0)
            except JournalUnavailable:
                pass
            else:
                sys.exit("it fitted")
        assert store.cursor("owner") == "" and store.open_messages() == ()
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        assert len(store.record_batch("owner", full, 3.0).rows) == 1
        assert store.cursor("owner") == "c2"
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), str(tmp_path / "state.db")],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=Path(__file__).parents[2],
    )

    assert done.returncode == 0, done.stderr


def test_an_unwritable_place_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(JournalUnavailable, match="file/state.db"):
        Store.open(tmp_path / "file" / "state.db")


def test_damage_found_in_use_is_said_apart_from_a_full_disk(store: Store, path: Path) -> None:
    for number in range(400):
        recorded(store, number)
    store = reopened(store, path)
    whole = path.read_bytes()
    store._db.execute("PRAGMA shrink_memory")  # it would answer from what it has read already
    path.write_bytes(whole[:4096] + b"\xa5" * (len(whole) - 4096))

    with pytest.raises(JournalDamaged):
        store.open_messages()

    store.close()


def test_b018_a_killed_process_has_the_whole_batch_or_none(tmp_path: Path) -> None:
    """SIGKILL while batches of ten are being recorded: rows, ids and cursor always tell the same story."""
    script = """
        import sys
        from pathlib import Path
        from supervisor.store import Store
        from supervisor.channels.base import Batch, RawMessage

        store, _ = Store.open(Path(sys.argv[1]))
        store.sign_in("owner", "bot", "", None, 1.0)
        number = 0
        while True:
            messages = tuple(RawMessage(f"{number}-{n}", "alice", 1, None, b"x" * 3000) for n in range(10))
            number += 1
            store.record_batch("owner", Batch(messages, str(number), None), 2.0)
            print(number, flush=True)
    """
    path = tmp_path / "state.db"
    writer = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script), str(path)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert writer.stdout is not None
    confirmed = [int(writer.stdout.readline()) for _ in range(30)][-1]
    writer.kill()
    confirmed = max([confirmed, *(int(line) for line in writer.stdout)])
    writer.wait(30)
    writer.stdout.close()

    store, warnings = Store.open(path)

    assert warnings == ()
    kept = int(store.cursor(AccountId("owner")))
    assert kept in (confirmed, confirmed + 1)
    assert len(store.open_messages()) == kept * 10
    assert store.counters()["received"] == kept * 10
    store.close()


# --- its face for asyncio -------------------------------------------------------------------------------------


def test_the_journal_runs_on_one_thread_of_its_own_and_closes_there(path: Path) -> None:
    async def main() -> set[str]:
        journal, warnings = await Journal.open(path)
        assert warnings == ()

        def where(store: Store) -> str:
            store.counters()
            return threading.current_thread().name

        names = set(await asyncio.gather(*(journal.do(where) for _ in range(20))))
        await journal.do(Store.sign_in, OWNER, "bot", "", None, at=1.0)
        kept = await journal.do(Store.record_batch, OWNER, batch(said(1)), 2.0)
        assert len(kept.rows) == 1
        await journal.close()
        return names

    (name,) = asyncio.run(main())

    assert name.startswith("journal")
    assert not any(thread.name.startswith("journal") for thread in threading.enumerate())


def test_a_journal_that_cannot_be_opened_leaves_no_thread(tmp_path: Path) -> None:
    async def main() -> None:
        with pytest.raises(JournalUnavailable):
            await Journal.open(tmp_path / "nowhere" / "state.db")

    asyncio.run(main())

    for thread in threading.enumerate():
        if thread.name.startswith("journal"):
            thread.join(10)
            assert not thread.is_alive()


def test_a_cancelled_caller_leaves_its_transaction_whole(path: Path) -> None:
    async def main() -> None:
        journal, _ = await Journal.open(path)
        await journal.do(Store.sign_in, OWNER, "bot", "", None, at=1.0)
        entered, go_on = threading.Event(), threading.Event()

        def slow(store: Store) -> None:
            entered.set()
            go_on.wait(30)
            store.record_batch(OWNER, batch(said(1)), 2.0)

        caller = asyncio.create_task(journal.do(slow))
        await asyncio.to_thread(entered.wait, 30)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        go_on.set()

        assert len(await journal.do(Store.open_messages)) == 1
        await journal.close()

    asyncio.run(main())


def test_the_partial_indexes_name_the_open_states() -> None:
    """They are spelled out in the schema; a state added in states.py must be added there."""
    from supervisor import store as module

    for states, clause in ((OPEN_MESSAGES, module._OPEN_MESSAGE), (OPEN_PARTS, module._OPEN_PART)):
        spelled = "state IN (" + ", ".join(f"'{state}'" for state in states) + ")"
        assert clause == spelled
        assert f"WHERE {spelled};" in module._SCHEMA


def test_looking_for_open_work_does_not_read_the_whole_journal(store: Store) -> None:
    for table, where, order in (
        ("message", "state IN ('received', 'queued', 'running', 'asking')", "row"),
        ("part", "state IN ('pending', 'sending', 'parked')", "place"),
    ):
        plan = store._db.execute(f"EXPLAIN QUERY PLAN SELECT * FROM {table} WHERE {where} ORDER BY {order}").fetchall()

        assert f"{table}_open" in str(plan)


def test_the_caller_of_another_thread_is_refused(store: Store) -> None:
    raised: list[BaseException] = []

    def elsewhere() -> None:
        try:
            store.counters()
        except sqlite3.ProgrammingError as error:
            raised.append(error)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()

    assert len(raised) == 1


def test_parked_parts_are_told_by_peer_with_the_age_of_the_oldest(store: Store) -> None:
    for number, (who, at, state) in enumerate(
        [
            (BOB, 30.0, PartState.PARKED),
            (ALICE, 20.0, PartState.PARKED),
            (ALICE, 25.0, PartState.PARKED),
            (ALICE, 1.0, PartState.PENDING),
        ]
    ):
        store.apply([AddPart(SendKey(f"k{number}"), who, None, PartKind.REPLY, "x", at, state)])

    assert store.parked() == (ParkedRecord(ALICE, 2, 20.0), ParkedRecord(BOB, 1, 30.0))


def test_failed_and_dead_messages_are_told_by_peer_as_far_back_as_asked(store: Store) -> None:
    states = (MessageState.FAILED, MessageState.FAILED, MessageState.DEAD, MessageState.ANSWERED, MessageState.FAILED)
    for number, state in enumerate(states):
        store.apply([SetMessage(recorded(store, number).row, state, at=100.0 + number)])

    assert store.failures(101.0) == (
        FailureRecord(ALICE, MessageState.FAILED, 2, 104.0),
        FailureRecord(ALICE, MessageState.DEAD, 1, 102.0),
    )


def test_a_umask_has_no_say(tmp_path: Path) -> None:
    """Mode bits come from us, not from whatever umask the service has."""
    old = os.umask(0)
    try:
        open_to_all, _ = Store.open(tmp_path / "other.db")
        open_to_all.close()
    finally:
        os.umask(old)

    assert stat.S_IMODE((tmp_path / "other.db").stat().st_mode) == 0o600


def test_tokens_add_up_over_a_peers_day_and_no_further(store: Store) -> None:
    alice, bob = PeerKey(AccountId("a"), PeerId("alice")), PeerKey(AccountId("a"), PeerId("bob"))

    store.apply([AddUsage(alice, "2026-11-30", 100, 20), AddUsage(alice, "2026-11-30", 1, 2)])
    store.apply([AddUsage(alice, "2026-12-01", 7, 0), AddUsage(bob, "2026-11-30", 5, 5)])

    assert store.tokens_of(alice, "2026-11-30") == 123
    assert store.tokens_of(alice, "2026-12-01") == 7
    assert store.tokens_of(bob, "2026-12-01") == 0
