"""core/doctor: what is wrong, and what mends it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from protocol.content import Access
from protocol.ctl import AccountRow, Finding, IsolationRow, LockRow, PeerRow, Severity, StatusReply, TurnRow
from protocol.probe import WORKED, Attempt
from protocol.spec import Layer
from supervisor.core.doctor import (
    DAY_S,
    HOUR_S,
    REMEDIES,
    AgentFact,
    Facts,
    FailureFact,
    LastFailure,
    ParkedFact,
    SecretFile,
    attempts,
    diagnose,
    is_well,
)
from supervisor.core.trial import Trial

ACCOUNT = AccountRow(
    "bot@im.bot", "default", "owner@im.wechat", "operator", "running", 60.0, 1.0, 18.2, 0, None, LockRow(True, 42)
)
PEER = PeerRow(
    "alice@im.wechat", "alice", "bot@im.bot", "guest", "echo", "readonly", "idle", None, 0, 3, 5, 0, 9.0, 0, None
)
STATUS = StatusReply(
    "0.1.0", 42, 5.0, "/home", IsolationRow("required", "strong", []), [ACCOUNT], [PEER], [], [], {}, []
)
WELL = Facts(
    status=STATUS,
    max_queue=8,
    warnings=(),
    locks=(),
    throttled=frozenset(),
    suspicious=frozenset(),
    parked=(),
    failures=(),
    starts_stopped=False,
    paused_starts={},
    limits={"memory": "capped", "network": "none"},
    agents=(AgentFact("echo", None, False, True, ("by default",)),),
    sockets="",
    proxy="",
    free_bytes=10**10,
    min_free_bytes=2**29,
    first=Trial(Access.CHAT, layers=(Layer.SECCOMP,)),
)


def with_account(**changes: Any) -> Facts:
    return replace(WELL, status=msgspec.structs.replace(STATUS, accounts=[msgspec.structs.replace(ACCOUNT, **changes)]))


def with_peer(**changes: Any) -> Facts:
    return replace(WELL, status=msgspec.structs.replace(STATUS, peers=[msgspec.structs.replace(PEER, **changes)]))


def with_isolation(mode: str, level: str, first: Trial = WELL.first) -> Facts:
    status = msgspec.structs.replace(STATUS, isolation=IsolationRow(mode, level, []))
    return replace(WELL, status=status, first=first)


def bad(facts: Facts) -> dict[str, Finding]:
    """What is not ok, by id."""
    return {finding.id: finding for finding in diagnose(facts) if finding.severity is not Severity.OK}


def test_a_bridge_that_is_well_has_nothing_but_ok() -> None:
    found = diagnose(WELL)

    assert is_well(found)
    assert {finding.severity for finding in found} == {Severity.OK}
    assert {"account_state", "token_age", "queue", "agent", "isolation", "disk"} == {finding.id for finding in found}
    assert not any(finding.fix for finding in found)


def test_who_holds_the_lock_and_when_the_last_poll_was_is_told() -> None:
    state = next(finding for finding in diagnose(WELL) if finding.id == "account_state")

    assert state.text == "default: running, polled 1 s ago, held for 18.2 s, its lock is process 42's"
    assert state.account == "bot@im.bot"


@pytest.mark.parametrize(
    ("facts", "id", "severity", "text", "fix"),
    [
        (replace(WELL, status=msgspec.structs.replace(STATUS, accounts=[])), "no_account", "warn", "nobody", "login"),
        (with_account(state="expired"), "account_state", "error", "login any more", "bridge-ctl login"),
        (with_account(state="paused"), "account_state", "warn", "paused", "bridge-ctl resume default"),
        (
            with_account(state="locked_out", lock=LockRow(False, 7)),
            "account_state",
            "error",
            "polled by process 7",
            "stop process 7",
        ),
        (with_account(state="stale", last_error="down"), "account_state", "error", "down", "way to WeChat"),
        (with_account(state="stopped", last_error="KeyError"), "account_state", "error", "KeyError", "log"),
        (with_account(poll_failures=3, last_error="refused"), "poll_outage", "warn", "3 polls failed", "by itself"),
        (with_account(token_age_s=DAY_S), "token_age", "warn", "24 h ago", "bridge-ctl login"),
        (replace(WELL, throttled=frozenset({"bot@im.bot"})), "throttled", "warn", "budget was not spent", "writes"),
        (replace(WELL, suspicious=frozenset({"bot@im.bot"})), "suspicious", "warn", "three sends", "history"),
        (replace(WELL, locks=("/x: the lock was replaced",)), "lock", "error", "replaced", "start one"),
        (
            replace(WELL, models=("the model server refuses the key",)),
            "model",
            "error",
            "refuses the key",
            "set it right",
        ),
        (with_peer(queued=8), "queue", "warn", "8 messages wait", "bridge-ctl stop alice"),
        (
            replace(WELL, parked=(ParkedFact("bot@im.bot", "alice@im.wechat", 4, 3 * HOUR_S),)),
            "parked",
            "warn",
            "4 parts of answers wait until they write again, the oldest for 3 h",
            "7 days",
        ),
        (
            replace(WELL, failures=(FailureFact("bot@im.bot", "alice@im.wechat", "failed", 2, 120.0),)),
            "failed_turns",
            "warn",
            "2 messages failed within a day, the last 2 min ago",
            "log",
        ),
        (
            replace(WELL, failures=(FailureFact("bot@im.bot", "alice@im.wechat", "dead", 1, 1.0),)),
            "dead_letter",
            "error",
            "1 message set aside",
            "log",
        ),
        (
            replace(WELL, agents=(AgentFact("acp", "claude-agent-acp", False, False, ("alice",)),)),
            "agent_missing",
            "error",
            "alice: the agent program claude-agent-acp is not found",
            "PATH",
        ),
        (
            replace(WELL, agents=(AgentFact("acp", "sh", True, False, ("by default",)),)),
            "agent_contract",
            "warn",
            "phone chat",
            "instruction file",
        ),
        (replace(WELL, starts_stopped=True), "starts_stopped", "error", "no worker is started", "bridge-ctl reload"),
        (replace(WELL, paused_starts={"alice": 30.0}), "starts_paused", "error", "started in 30 s", "log"),
        (with_isolation("required", "medium"), "isolation", "warn", "medium", ""),
        (with_isolation("required", "weak"), "isolation", "error", "only the operator", "best-effort"),
        (with_isolation("best-effort", "weak"), "isolation", "warn", "all the same", "missing layers"),
        (with_isolation("off", "weak"), "isolation", "warn", "switched off", "required"),
        (
            with_isolation("required", "weak", Trial(Access.CHAT, failed="not ready in time")),
            "isolation_trial",
            "error",
            "not ready in time",
            "--probe",
        ),
        (replace(WELL, limits={"disk": "open"}), "limits_open", "warn", "disk", ""),
        (replace(WELL, free_bytes=1024), "disk", "error", "no turn starts", "room"),
        (replace(WELL, warnings=("peers.toml: set aside",)), "found_odd", "warn", "set aside", ""),
    ],
)
def test_what_is_wrong_is_named_with_what_mends_it(facts: Facts, id: str, severity: str, text: str, fix: str) -> None:
    found = bad(facts)[id]

    assert found.severity == severity
    assert text in found.text
    assert fix in (found.fix or "")
    assert is_well(diagnose(facts)) is all(one.severity is not Severity.ERROR for one in bad(facts).values())


@pytest.mark.parametrize("layer", list(Layer))
def test_each_missing_layer_is_named_with_its_remedy(layer: Layer) -> None:
    facts = with_isolation("required", "medium", Trial(Access.CHAT, missing=(layer,)))

    found = bad(facts)["isolation_missing"]

    assert (found.text, found.fix) == (f"no {layer.value}", REMEDIES[layer])


def test_a_layer_that_is_in_place_and_does_not_hold_is_told_apart_from_one_that_is_absent() -> None:
    first = Trial(Access.CHAT, layers=(Layer.LANDLOCK,), ends=((Attempt.LIST_ROOT, WORKED),))

    assert "does not hold" in bad(with_isolation("required", "medium", first))["isolation_missing"].text


def test_the_proxy_the_sockets_folder_and_what_is_merely_watched_are_told_without_alarm() -> None:
    found = diagnose(
        replace(WELL, proxy="http://proxy:8080", sockets="/run/user/0/bridge-x", limits={"memory": "watched"})
    )

    texts = {finding.id: finding.text for finding in found if finding.severity is Severity.OK}
    assert "http://proxy:8080" in texts["proxy"]
    assert "/run/user/0/bridge-x" in texts["sockets"]
    assert "memory" in texts["limits_watched"]


def test_a_running_turn_and_a_spent_budget_are_no_fault() -> None:
    assert not bad(with_peer(budget_left=0, turn=TurnRow("7", 1.0), state="running"))


def told(ends: Sequence[tuple[Attempt, str]], layers: Sequence[Layer] = (Layer.SECCOMP,)) -> list[Finding]:
    return list(attempts(Trial(Access.READONLY, layers=tuple(layers), ends=tuple(ends))))


def test_an_attempt_names_the_layer_that_stopped_it() -> None:
    (found,) = told([(Attempt.OPEN_UDP, "EACCES")])

    assert (found.id, found.severity) == ("probe_open_udp", Severity.OK)
    assert found.text == "readonly: open a UDP socket: stopped by seccomp (EACCES)"


def test_an_attempt_that_worked_is_an_error_with_the_remedies_of_what_should_have_stopped_it() -> None:
    (found,) = told([(Attempt.SEE_SYSTEM, WORKED)])

    assert (found.id, found.severity) == ("probe_see_system", Severity.ERROR)
    assert found.text == "readonly: see /sys: worked"
    assert found.fix == f"mount_ns: {REMEDIES[Layer.MOUNT_NS]}"


def test_an_attempt_that_no_layer_of_ours_stopped_is_not_claimed_for_one() -> None:
    (found,) = told([(Attempt.BECOME_ROOT, "EPERM")])

    assert "stopped by the system itself (EPERM)" in found.text


def test_a_uid_of_its_own_takes_the_place_of_a_user_namespace() -> None:
    assert told([(Attempt.KNOW_USERS, WORKED)], [Layer.OWN_UID]) == []
    assert len(told([(Attempt.KNOW_USERS, WORKED)])) == 1


def test_a_trial_that_could_not_be_made_is_an_error_and_full_is_listed_as_what_it_is() -> None:
    found = diagnose(replace(WELL, trials=(Trial(Access.CHAT, failed="the bridge is stopping"),)))

    by_id = {finding.id: finding for finding in found}
    assert by_id["probe_chat"].severity is Severity.ERROR
    assert "the bridge is stopping" in by_id["probe_chat"].text
    assert "not isolated" in by_id["probe_full"].text


@pytest.mark.parametrize(
    ("ahead_s", "said"), [(3600.0, "1 h ahead of"), (-7200.0, "2 h behind"), (61.0, "61 s ahead of")]
)
def test_a_clock_that_is_wrong_is_named_with_its_direction(ahead_s: float, said: str) -> None:
    found = bad(replace(WELL, clocks={"bot@im.bot": ahead_s}))

    assert said.replace("1 h", "60 min") in found["clock"].text
    assert found["clock"].fix


@pytest.mark.parametrize("ahead_s", [-59.0, 0.4, 59.0])
def test_a_slow_network_is_no_wrong_clock(ahead_s: float) -> None:
    assert "clock" not in {one.id for one in diagnose(replace(WELL, clocks={"bot@im.bot": ahead_s}))}


def test_a_secret_that_others_may_read_is_an_error_with_the_command_that_closes_it() -> None:
    files = (SecretFile("/h/credentials.json", 0o600, True), SecretFile("/h/env", 0o644, True))

    found = bad(replace(WELL, secrets=files))

    assert (found["secret_file"].severity, found["secret_file"].fix) == (Severity.ERROR, "chmod 600 /h/env")
    assert (
        "belongs to another user"
        in bad(replace(WELL, secrets=(SecretFile("/h/env", 0o600, False),)))["secret_file"].text
    )
    assert "secret_file" not in bad(replace(WELL, secrets=files[:1]))


def test_the_last_failure_of_each_kind_is_told_with_its_code_and_age() -> None:
    last = (LastFailure("send_rejected", 300.0, "alice@im.wechat", "send_key=k code=-2"),)

    (found,) = [one for one in diagnose(replace(WELL, last=last)) if one.id == "last_failure"]

    assert found.text == "alice: the last send_rejected 5 min ago: send_key=k code=-2"


def test_a_very_long_conversation_is_named() -> None:
    found = [one for one in diagnose(with_peer(session_age_s=8 * DAY_S)) if one.id == "session_age"]

    assert [one.fix for one in found] == ["bridge-ctl reset alice starts a fresh one"]
    assert not [one for one in diagnose(with_peer(session_age_s=DAY_S)) if one.id == "session_age"]


def test_settings_and_the_gateway_are_told() -> None:
    texts = [
        one.text for one in diagnose(replace(WELL, changed=("a.b = 1", "c.d = 2"), gateway="process 7, reachable"))
    ]

    assert "set otherwise than by default: a.b = 1; c.d = 2" in texts
    assert "the gateway to the models: process 7, reachable" in texts
