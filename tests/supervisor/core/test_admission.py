"""Who gets in: the owner and whoever is named whole, nobody by likeness; and how much of them gets in."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.content import Access, Role
from protocol.ids import AccountId, PeerId, PeerKey
from supervisor.core.admission import (
    BACKLOG,
    Admit,
    Door,
    Full,
    Ignore,
    Ignored,
    Load,
    PeerPolicy,
    Refuse,
    Said,
    TurnAway,
    WrittenAs,
    cap,
    cap_all,
    is_late,
    language_after,
    may_speak,
    policy_for,
    sanitise,
    written_at,
)
from supervisor.core.graphemes import boundaries
from supervisor.core.policy import Admission, Agent, AgentOverrides, Guests, PeerOverrides

ACCOUNT = AccountId("o9cq80owner@im.wechat")
OWNER = PeerKey(ACCOUNT, PeerId("o9cq80owner@im.wechat"))
ALICE = PeerKey(ACCOUNT, PeerId("alice@im.wechat"))
STRANGER = PeerKey(ACCOUNT, PeerId("mallory@im.wechat"))
NAMES = ("work", "bot-1@im.bot")


def policy(
    who: PeerKey = ALICE,
    *,
    role: Role = Role.GUEST,
    allowed: tuple[str, ...] = (),
    peers: dict[str, PeerOverrides] | None = None,
    accounts: dict[str, PeerOverrides] | None = None,
    admission: Admission | None = None,
    guests: Guests | None = None,
    agent: Agent | None = None,
) -> PeerPolicy:
    return policy_for(
        who,
        role=role,
        account_names=NAMES,
        admission=admission or Admission(allowed_peers=allowed),
        guests=guests or Guests(),
        agent=agent or Agent(),
        accounts=accounts or {},
        peers=peers or {},
    )


ADMITTED = replace(policy(allowed=("alice",)), max_turns_per_hour=0, max_tokens_per_day=0)


# --- who ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "allowed", [(), ("",), (" ",), ("*",), ("a",), ("alice@im",), ("ALICE",), ("Alice@im.wechat",)]
)
def test_b029_an_empty_blank_starred_or_unequal_list_admits_the_owner_alone(allowed: tuple[str, ...]) -> None:
    assert policy(OWNER, allowed=allowed).admitted
    assert not policy(ALICE, allowed=allowed).admitted
    assert not policy(STRANGER, allowed=allowed).admitted
    assert not policy(PeerKey(ACCOUNT, PeerId("")), allowed=allowed).admitted
    assert not policy(PeerKey(ACCOUNT, PeerId("@im.wechat")), allowed=allowed).admitted


@pytest.mark.parametrize(
    "entry",
    [
        "alice",
        "alice@im.wechat",
        "work/alice",
        "work/alice@im.wechat",
        "bot-1@im.bot/alice",
        "bot-1/alice",
        "o9cq80owner@im.wechat/alice@im.wechat",
        "o9cq80owner/alice",
    ],
)
def test_an_entry_is_a_whole_id_or_label_and_an_account_narrows_it(entry: str) -> None:
    assert policy(ALICE, allowed=(entry,)).admitted
    assert policy(ALICE, peers={entry: PeerOverrides(admitted=True)}).admitted
    assert not policy(STRANGER, allowed=(entry,)).admitted


@pytest.mark.parametrize("entry", ["home/alice", "/alice", "Work/alice", "work/", "work/ ", "work//alice"])
def test_an_entry_of_another_account_is_not_for_this_one(entry: str) -> None:
    assert not policy(ALICE, allowed=(entry,)).admitted


@pytest.mark.parametrize("liar", ["work/alice", "work/alice@im.wechat", "bot-1/alice@x"])
def test_nobody_gets_in_by_calling_himself_an_account_and_a_peer(liar: str) -> None:
    who = PeerKey(AccountId("elsewhere"), PeerId(liar))

    assert not policy_for(
        who,
        role=Role.GUEST,
        account_names=("home",),
        admission=Admission(allowed_peers=("work/alice", "work/alice@im.wechat", "bot-1/alice@x")),
        guests=Guests(),
        agent=Agent(),
        accounts={},
        peers={},
    ).admitted


def test_a_denial_beats_the_list_and_never_the_owner() -> None:
    denied = {"alice": PeerOverrides(admitted=False), OWNER.peer: PeerOverrides(admitted=False)}

    assert not policy(ALICE, allowed=("alice", "alice@im.wechat"), peers=denied).admitted
    assert policy(OWNER, peers=denied).admitted


def test_b021_an_entry_without_admission_admits_nobody() -> None:
    assert not policy(ALICE, peers={"alice": PeerOverrides(access=Access.WORKSPACE)}).admitted


def test_allow_on_one_account_says_nothing_about_another() -> None:
    peers = {"work/alice": PeerOverrides(admitted=True), "alice": PeerOverrides(admitted=False)}

    assert policy(ALICE, peers=peers).admitted
    other = PeerKey(AccountId("other@im.wechat"), ALICE.peer)
    assert not policy_for(
        other,
        role=Role.GUEST,
        account_names=("home",),
        admission=Admission(),
        guests=Guests(),
        agent=Agent(),
        accounts={},
        peers=peers,
    ).admitted


@given(sender=st.text(max_size=12), allowed=st.lists(st.text(max_size=12), max_size=4))
def test_only_whole_names_admit(sender: str, allowed: list[str]) -> None:
    who = PeerKey(ACCOUNT, PeerId(sender))

    found = policy(who, allowed=tuple(allowed)).admitted

    if found:
        plain = {entry.split("/", 1)[-1] for entry in allowed}
        assert sender in plain or sender.split("@", 1)[0] in plain


def test_what_is_said_of_a_message() -> None:
    stranger = policy(STRANGER)

    assert may_speak(echo=True, group_id="", policy=ADMITTED) == Ignore(Ignored.ECHO)
    assert may_speak(echo=False, group_id="g", policy=policy(OWNER)) == Ignore(Ignored.GROUP)
    assert may_speak(echo=False, group_id="g", policy=stranger) == Ignore(Ignored.GROUP)
    assert may_speak(echo=False, group_id="", policy=stranger) == Refuse()
    assert may_speak(echo=False, group_id="", policy=ADMITTED) == Admit()


# --- how much -------------------------------------------------------------------------------------------------


def test_the_defaults_go_by_role() -> None:
    operator = policy(OWNER, role=Role.OPERATOR, admission=Admission(max_turns_per_hour=7))
    guest = policy(ALICE, admission=Admission(max_turns_per_hour=7))

    assert (operator.access, operator.max_turns_per_hour, operator.max_tokens_per_day) == (Access.WORKSPACE, 7, 0)
    assert (guest.access, guest.max_turns_per_hour, guest.max_tokens_per_day) == (Access.READONLY, 30, 300_000)
    assert (operator.owner, guest.owner) == (True, False)
    assert (operator.network, operator.tools, guest.tools) == (False, None, None)


def test_the_most_specific_wins_key_by_key() -> None:
    peers = {
        "work/alice@im.wechat": PeerOverrides(max_turns_per_hour=5),
        "work/alice": PeerOverrides(max_turns_per_hour=4, max_tokens_per_day=4),
        "alice@im.wechat": PeerOverrides(max_turns_per_hour=3, max_tokens_per_day=3, network=True),
        "alice": PeerOverrides(max_turns_per_hour=2, max_tokens_per_day=2, network=False, access=Access.CHAT),
        "home/alice": PeerOverrides(tools=("bash",)),
    }
    accounts = {"work": PeerOverrides(access=Access.WORKSPACE, tools=("read",)), "home": PeerOverrides(tools=())}

    found = policy(ALICE, peers=peers, accounts=accounts)

    assert (found.max_turns_per_hour, found.max_tokens_per_day, found.network) == (5, 4, True)
    assert (found.access, found.tools) == (Access.CHAT, ("read",))


def test_an_account_speaks_for_its_owner_too() -> None:
    found = policy(OWNER, role=Role.OPERATOR, accounts={"work": PeerOverrides(max_turns_per_hour=60)})

    assert found.max_turns_per_hour == 60


def test_zero_and_nothing_are_settings_and_not_absent_ones() -> None:
    found = policy(ALICE, peers={"alice": PeerOverrides(max_turns_per_hour=0, max_tokens_per_day=0, tools=())})

    assert (found.max_turns_per_hour, found.max_tokens_per_day, found.tools) == (0, 0, ())


def test_the_agent_is_overridden_key_by_key() -> None:
    found = policy(
        ALICE,
        agent=Agent(host="acp", command=("a",), model="m"),
        peers={"alice": PeerOverrides(agent=AgentOverrides(model="n"))},
        accounts={"work": PeerOverrides(agent=AgentOverrides(model="x", footer=True))},
    ).agent

    assert (found.host, found.command, found.model, found.footer) == ("acp", ("a",), "n", True)


# --- the door -------------------------------------------------------------------------------------------------


def live(door: Door, load: Load, *, rules: PeerPolicy = ADMITTED, at: float = 10_000.0, max_queue: int = 8) -> object:
    return door.may_run(ALICE, rules, load, late=False, max_queue=max_queue, at=at)


def test_b102_past_the_queue_one_line_a_burst() -> None:
    door = Door()

    verdicts = [live(door, Load(waiting=min(n, 8))) for n in range(11)]

    assert verdicts[:8] == [Admit()] * 8
    assert verdicts[8:] == [
        TurnAway(Full.QUEUE, Said.NOW),
        TurnAway(Full.QUEUE, Said.BEFORE),
        TurnAway(Full.QUEUE, Said.BEFORE),
    ]
    assert live(door, Load(waiting=7)) == Admit()
    assert live(door, Load(waiting=8)) == TurnAway(Full.QUEUE, Said.NOW)


def test_a_backlog_is_queued_past_the_live_limit_and_the_rest_is_named_once() -> None:
    door = Door()

    verdicts = [
        door.may_run(ALICE, ADMITTED, Load(waiting=min(n, BACKLOG)), late=True, max_queue=8, at=1.0) for n in range(60)
    ]

    assert verdicts[:50] == [Admit()] * 50
    assert verdicts[50:] == [TurnAway(Full.BACKLOG, Said.AT_THE_END)] * 10
    assert door.backlog_closed() == {ALICE: 10}
    assert door.backlog_closed() == {}


def test_over_the_hourly_limit_the_line_says_when_and_comes_once_a_window() -> None:
    door, rules = Door(), replace(ADMITTED, max_turns_per_hour=2)
    load = Load(waiting=0, turns_at=(1000.0, 2000.0))

    first = live(door, load, rules=rules, at=2500.0)
    told = {Full.HOURLY_LIMIT: 2500.0 + 2100.0}  # by the journal, so that a restart says nothing twice
    second = live(Door(), replace(load, told_until=told), rules=rules, at=3000.0)
    passed = live(door, replace(load, told_until=told), rules=rules, at=4600.5)

    assert first == TurnAway(Full.HOURLY_LIMIT, Said.NOW, wait_s=2100.0)
    assert second == TurnAway(Full.HOURLY_LIMIT, Said.BEFORE, wait_s=1600.0)
    assert passed == Admit()
    again = live(door, Load(waiting=0, turns_at=(2000.0, 4601.0), told_until=told), rules=rules, at=4700.0)
    assert again == TurnAway(Full.HOURLY_LIMIT, Said.NOW, wait_s=900.0)


def test_a_later_window_is_announced_even_if_nobody_got_in_between() -> None:
    door, rules = Door(), replace(ADMITTED, max_turns_per_hour=1)
    assert live(door, Load(0, (1000.0,)), rules=rules, at=2000.0) == TurnAway(Full.HOURLY_LIMIT, Said.NOW, 2600.0)

    told = {Full.HOURLY_LIMIT: 4600.0}
    later = live(door, Load(0, (5000.0,), told_until=told), rules=rules, at=6000.0)
    set_back = live(door, Load(0, (1000.0,), told_until={Full.HOURLY_LIMIT: 99_999.0}), rules=rules, at=2000.0)

    assert set_back == TurnAway(Full.HOURLY_LIMIT, Said.NOW, 2600.0), "told in a future that a clock has taken back"
    assert later == TurnAway(Full.HOURLY_LIMIT, Said.NOW, 2600.0)


def test_what_waits_counts_against_the_hour() -> None:
    rules = replace(ADMITTED, max_turns_per_hour=3)

    assert live(Door(), Load(waiting=1, turns_at=(9_000.0,)), rules=rules) == Admit()
    assert live(Door(), Load(waiting=2, turns_at=(9_000.0,)), rules=rules) == TurnAway(
        Full.HOURLY_LIMIT, Said.NOW, wait_s=2600.0
    )


def test_b093_a_clock_set_back_blocks_nobody() -> None:
    rules = replace(ADMITTED, max_turns_per_hour=1)

    assert live(Door(), Load(waiting=0, turns_at=(99_999.0,)), rules=rules, at=1_000.0) == Admit()


def test_a_spent_token_budget_closes_the_day_with_one_line() -> None:
    door, rules = Door(), replace(ADMITTED, max_tokens_per_day=100)
    assert live(door, Load(0, tokens_today=99, tokens_anew_at=20_000.0), rules=rules) == Admit()
    spent = Load(0, tokens_today=100, tokens_anew_at=20_000.0)

    assert live(door, spent, rules=rules) == TurnAway(Full.TOKEN_BUDGET, Said.NOW, wait_s=10_000.0)
    told = replace(spent, told_until={Full.TOKEN_BUDGET: 20_000.0, Full.HOURLY_LIMIT: 20_000.0})
    assert live(door, told, rules=rules) == TurnAway(Full.TOKEN_BUDGET, Said.BEFORE, wait_s=10_000.0)


def test_no_limit_is_no_limit() -> None:
    load = Load(waiting=0, turns_at=tuple(float(n) for n in range(9_000, 10_000)), tokens_today=10**12)

    assert live(Door(), load) == Admit()


@given(
    limit=st.integers(1, 6),
    steps=st.lists(st.tuples(st.floats(0.5, 1500.0), st.booleans()), max_size=60),
)
def test_no_hour_ever_holds_more_starts_than_the_limit(limit: int, steps: list[tuple[float, bool]]) -> None:
    """Messages come, turns start when they like, oldest first: any 3600 seconds see `limit` starts at most."""
    door, rules = Door(), replace(ADMITTED, max_turns_per_hour=limit)
    at, waiting = 100_000.0, 0
    starts: list[float] = []
    for gap, starts_one in steps:
        at += gap
        if starts_one and waiting:
            waiting -= 1
            starts.append(at)
        elif live(door, Load(waiting, tuple(starts)), rules=rules, at=at, max_queue=100) == Admit():
            waiting += 1
        for end in starts:
            assert sum(end - 3600.0 < start <= end for start in starts) <= limit


# --- when -----------------------------------------------------------------------------------------------------


def test_a_message_is_timed_by_the_difference_of_the_clocks() -> None:
    assert written_at(995_000, offset_ms=3_000, received_at=1000.0) == 998.0
    assert written_at(1_030_000, offset_ms=-30_000, received_at=1000.0) == 1000.0
    assert written_at(1_030_000, offset_ms=None, received_at=1000.0) == 1000.0
    assert written_at(None, offset_ms=3_000, received_at=1000.0) == 1000.0


@pytest.mark.parametrize(
    ("age_s", "first_answer", "late"), [(599.0, False, False), (601.0, False, True), (0.0, True, True)]
)
def test_late_is_old_or_handed_over_first(age_s: float, first_answer: bool, late: bool) -> None:
    assert is_late(1000.0 - age_s, received_at=1000.0, first_answer=first_answer, late_s=600.0) is late


# --- the words ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("a\r\nb\rc\n\r\nd", "a\nb\nc\n\nd"),
        ("a\x00b\x1b[31mc\x7f\x85\x9fd", "ab[31mcd"),
        ("tab\there", "tab\there"),
        ("\ud83e\udd80", "🦀"),
        ("ok \ud83d done", "ok \ufffd done"),
        ("\udd80\ud83e", "\ufffd\ufffd"),
        ("אב \u202eabc\u202c", "אב \u202eabc\u202c"),
        ("\u2028 \ufeff 中文，👨\u200d👩", "\u2028 \ufeff 中文，👨\u200d👩"),
    ],
)
def test_b048_text_is_cleaned_of_what_is_no_text(text: str, clean: str) -> None:
    assert sanitise(text) == clean


@given(text=st.text(st.characters(exclude_categories=())))
def test_what_was_sanitised_is_valid_and_stays_as_it_is(text: str) -> None:
    clean = sanitise(text)

    clean.encode("utf-8")
    assert sanitise(clean) == clean
    assert not set(clean) & {chr(code) for code in [*range(9), *range(11, 32), 0x7F, *range(0x80, 0xA0)]}


def test_a_text_is_capped_between_visible_characters_and_says_how_many_are_gone() -> None:
    family = "👨\u200d👩\u200d👧"

    assert cap("abc" + family + "d", 5) == ("abc", 6)
    assert cap("abc" + family, 8) == ("abc" + family, 0)
    assert cap("abc", 0) == ("", 3)


def test_the_sum_is_capped_and_what_comes_first_is_served_first() -> None:
    assert cap_all(["hello", "world", "x"], 7) == (("hello", "wo", ""), 4)
    assert cap_all(["hello", "", "x"], 10) == (("hello", "", "x"), 0)
    assert cap_all(["e\u0301" * 3, "ab"], 5) == (("e\u0301" * 2, ""), 4)


@given(
    texts=st.lists(st.text(st.sampled_from("ab中\u0301\u200d👩🇩🇪\n"), max_size=20), max_size=5),
    limit=st.integers(0, 40),
)
def test_capping_loses_nothing_silently(texts: list[str], limit: int) -> None:
    kept, missing = cap_all(texts, limit)

    assert sum(map(len, kept)) <= limit
    assert sum(map(len, kept)) + missing == sum(map(len, texts))
    assert all(text.startswith(left) for text, left in zip(texts, kept, strict=True))
    for text, left in zip(texts, kept, strict=True):
        whole_first = next(boundaries(text), 0)
        assert left == "" or len(left) in boundaries(text) or len(left) < whole_first


# --- the language ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "after_en", "after_zh"),
    [
        ("你好", "zh", "zh"),
        ("ok 好的 thank you very much", "zh", "zh"),
        ("𠮷", "zh", "zh"),
        ("1", "en", "zh"),
        ("ok", "en", "zh"),
        ("👍", "en", "zh"),
        ("", "en", "zh"),
        ("ok 1", "en", "zh"),
        ("，。！", "en", "zh"),
        ("https://example.com/a-b", "en", "zh"),
        ("load_user_rows x1", "en", "zh"),
        ("thank you", "en", "en"),
        ("Don't worry!", "en", "en"),
        ("(merci) beaucoup", "en", "en"),
        ("well-known", "en", "zh"),
        ("hello\nworld", "en", "en"),
    ],
)
def test_notices_follow_the_words(text: str, after_en: str, after_zh: str) -> None:
    assert language_after(text, WrittenAs.WORDS, before="en") == after_en
    assert language_after(text, WrittenAs.WORDS, before="zh") == after_zh


def test_a_command_never_switches_the_language() -> None:
    assert language_after("/stop right now please", WrittenAs.COMMAND, before="zh") == "zh"
    assert language_after("/new 换个话题", WrittenAs.COMMAND, before="en") == "en"


@pytest.mark.parametrize("text", ["!" * 1_000_000, "a-" * 500_000, "a" * 1_000_000 + "1", "a1 " * 300_000])
def test_a_long_text_is_read_in_one_pass(text: str) -> None:
    language_after(text, WrittenAs.WORDS, before="zh")
