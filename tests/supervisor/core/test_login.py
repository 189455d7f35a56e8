"""The login machine against the official client's scripts, and where we differ on purpose."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import BridgeError
from supervisor.core.login import (
    AskCode,
    AskStatus,
    Bound,
    CodeBlocked,
    CodeGiven,
    CodeNeeded,
    Confirmed,
    CreateQr,
    End,
    Line,
    Login,
    LoginEffect,
    LoginEvent,
    Outcome,
    QrExpired,
    QrFailed,
    QrMade,
    Redirected,
    Scanned,
    ShowQr,
    Started,
    Tell,
    TimedOut,
    Untrusted,
    Wait,
    Waiting,
    Woke,
)

VECTORS = json.loads((Path(__file__).parents[2] / "data" / "ilink-vectors.json").read_text())
OFFICIAL = VECTORS["behaviour_2_4_9"]["login"]
RESULTS = {"connected": Outcome.CONFIRMED, "already_connected": Outcome.ALREADY_BOUND, "failed": Outcome.NOT_CONFIRMED}


def status_event(status: str) -> LoginEvent:
    name, _, detail = status.partition(":")
    if name == "scaned_but_redirect":
        return Redirected(f"https://{detail}")
    events: dict[str, LoginEvent] = {
        "wait": Waiting(),
        "scaned": Scanned(),
        "confirmed": Confirmed(),
        "expired": QrExpired(),
        "need_verifycode": CodeNeeded(),
        "verify_code_blocked": CodeBlocked(),
        "binded_redirect": Bound(),
        "http": Waiting("HTTP 524"),
    }
    return events[name]


class Script:
    """Plays a login: each status question takes the next event, every other effect its good outcome."""

    def __init__(self, *statuses: LoginEvent) -> None:
        self.statuses = list(statuses)
        self.effects: list[LoginEffect] = []
        self.now = 0.0
        login, event = Login(), Started()
        step: LoginEvent = event
        while not self.effects or not isinstance(self.effects[-1], End):
            self.effects += login.step(step, self.now)
            step = self._outcome(self.effects[-1])

    def _outcome(self, effect: LoginEffect) -> LoginEvent:
        match effect:
            case CreateQr():
                return QrMade(f"ticket-{len(self.of(CreateQr))}", f"https://qr/{len(self.of(CreateQr))}")
            case AskStatus(within_s=within_s):
                if not self.statuses:
                    self.now += within_s
                    return Waiting()
                return self.statuses.pop(0)
            case AskCode():
                return CodeGiven(str(len(self.of(AskCode))))
            case Wait(until):
                self.now = until
                return Woke()
            case _:
                return Waiting()

    def of(self, kind: type[Any]) -> list[Any]:
        return [effect for effect in self.effects if isinstance(effect, kind)]

    @property
    def end(self) -> End:
        assert isinstance(self.effects[-1], End)
        return self.effects[-1]


@pytest.mark.parametrize("case", OFFICIAL, ids=lambda case: case["name"])
def test_a_login_goes_as_the_official_client_goes(case: dict[str, Any]) -> None:
    played = Script(*(status_event(status) for status in case["statuses"]))

    asked = played.of(AskStatus)
    assert played.end.outcome is RESULTS[case["result"]]
    assert len(played.of(CreateQr)) == case["qr_requests"]
    assert len(played.of(Wait)) * [1000] == case["sleeps_ms"]
    with_code = [number for number, question in enumerate(asked, start=1) if question.code]
    assert with_code == case.get("verify_code_sent_on_polls", [])
    if "poll_hosts" in case:
        assert [question.base_url for question in asked] == [None, f"https://{case['poll_hosts'][1]}"]


def test_b085_each_expired_code_is_replaced_by_one_that_is_shown() -> None:
    played = Script(Waiting(), QrExpired(), QrExpired(), Scanned(), Confirmed())

    assert played.of(ShowQr) == [ShowQr(f"https://qr/{number}", number, 3) for number in (1, 2, 3)]
    assert [question.ticket for question in played.of(AskStatus)][-1] == "ticket-3"
    assert played.of(Tell) == [Tell(Line.EXPIRED), Tell(Line.EXPIRED), Tell(Line.SCANNED)]
    assert played.end.outcome is Outcome.CONFIRMED


@pytest.mark.parametrize("scanned", [Scanned(), Redirected("https://idc2")])
def test_b085_a_scanned_code_is_never_replaced(scanned: LoginEvent) -> None:
    played = Script(scanned, QrExpired())

    assert len(played.of(CreateQr)) == 1
    assert played.end == End(
        Outcome.NOT_CONFIRMED, "The code was scanned, but not confirmed on the phone before it ran out."
    )


def test_b106_when_all_codes_ran_out_the_reason_says_that_the_phone_never_confirmed() -> None:
    played = Script(*[Waiting(), Waiting(), QrExpired()] * 3)

    assert played.end.outcome is Outcome.NOT_CONFIRMED
    assert played.end.reason.startswith("The phone never confirmed: 3 QR codes ran out. Check")


def test_blocked_numbers_count_as_codes() -> None:
    played = Script(*[CodeNeeded(), CodeBlocked()] * 3)

    assert len(played.of(CreateQr)) == 3
    assert played.end.outcome is Outcome.NOT_CONFIRMED


def test_a_wrong_number_is_asked_for_again_at_once() -> None:
    played = Script(CodeNeeded(), CodeNeeded(), Confirmed())

    assert [question.again for question in played.of(AskCode)] == [False, True]
    assert [question.code for question in played.of(AskStatus)] == ["", "1", "2"]
    assert played.of(Wait) == []


def test_a_number_nobody_types_ends_the_login() -> None:
    login = Login()
    for event in (Started(), QrMade("t", "u"), CodeNeeded()):
        effects = login.step(event, 0.0)

    assert effects == (AskCode(again=False, within_s=480.0),)
    assert login.step(TimedOut(), 480.0)[-1] == End(
        Outcome.NOT_CONFIRMED, "The number that the phone shows was not entered in time."
    )


def test_a_login_ends_after_eight_minutes() -> None:
    played = Script()

    assert played.end == End(Outcome.NOT_CONFIRMED, "Nobody confirmed on the phone within 8 minutes.")
    assert 480.0 <= played.now <= 481.0
    assert all(question.within_s <= 35.0 for question in played.of(AskStatus))


def test_trouble_counts_as_waiting_and_is_told_once() -> None:
    played = Script(Waiting("ConnectError"), Waiting("ConnectError"), Waiting(), Waiting("HTTP 502"), Confirmed())

    assert played.of(Tell) == [Tell(Line.TROUBLE, "ConnectError"), Tell(Line.TROUBLE, "HTTP 502")]
    assert played.end.outcome is Outcome.CONFIRMED


def test_three_failures_to_get_a_code_end_the_login_with_their_reason() -> None:
    login = Login()
    effects = login.step(Started(), 0.0)
    seen = [effects]
    for number in range(3):
        seen.append(login.step(QrFailed("HTTP 502"), float(number)))
        if number < 2:
            seen.append(login.step(Woke(), number + 1.0))

    assert [type(effects[-1]) for effects in seen] == [CreateQr, Wait, CreateQr, Wait, CreateQr, End]
    assert seen[-1][-1] == End(Outcome.NOT_CONFIRMED, "WeChat gave no QR code: HTTP 502.")


def test_a_host_that_is_not_trusted_ends_the_login_and_is_named() -> None:
    assert "evil.example" in Script(Untrusted("evil.example")).end.reason


def test_a_confirmation_without_the_bots_id_is_a_failure() -> None:
    end = Script(Confirmed(("ilink_bot_id",))).end

    assert end == End(Outcome.NOT_CONFIRMED, "WeChat confirmed, but its answer lacks ilink_bot_id.")


def test_nothing_comes_after_the_end() -> None:
    login = Login()
    for event in (Started(), QrMade("t", "u"), Bound()):
        login.step(event, 0.0)

    with pytest.raises(BridgeError):
        login.step(Woke(), 1.0)


statuses = st.sampled_from(
    [
        Waiting(),
        Waiting("trouble"),
        Scanned(),
        Redirected("https://idc2"),
        CodeNeeded(),
        CodeBlocked(),
        QrExpired(),
        Bound(),
        Confirmed(),
        Confirmed(("bot_token",)),
        Untrusted("x"),
    ]
)


@given(st.lists(statuses, max_size=60))
def test_under_any_script_a_login_ends_in_time_with_at_most_three_codes(script: list[LoginEvent]) -> None:
    played = Script(*script)

    assert len(played.of(ShowQr)) <= 3
    assert played.now <= 516.0
    assert bool(played.end.reason) is (played.end.outcome is Outcome.NOT_CONFIRMED)
    for before, after in zip(played.effects, played.effects[1:], strict=False):
        assert not (isinstance(before, AskStatus) and isinstance(after, AskStatus)), "no pause between two questions"
