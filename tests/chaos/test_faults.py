"""Every switch of the simulated WeChat, alone and two at a time: what is said meanwhile has one outcome all the same.

One bridge goes through all of a group's troubles, one after the other, as in a bad week. Which promise each switch is
about is tested where that promise is (tests/promises, tests/bank, tests/supervisor/channels); here nothing may be lost,
run twice, shown twice or left behind.
"""

import random
from typing import Any

import pytest

from supervisor.demo import faults
from tests.chaos.checks import violations_in_trouble
from tests.chaos.home import Agent, ChaosHome

Trouble = tuple[str, dict[str, Any]]

SPOILT = (
    "http_status",
    "html_page",
    "empty_body",
    "close_unanswered",
    "truncated_json",
    "cut_body",
    "dribbled_body",
    "late",
)
ON_POLLS: list[Trouble] = [
    *((name, {"path": "getupdates", "times": 1}) for name in SPOILT),
    ("fixed_answer", {"path": "getupdates", "times": 1, "body": {}}),
    ("fixed_answer", {"path": "getupdates", "times": 1, "body": {"ret": 77, "errmsg": "?"}}),
    ("stale_session", {"path": "getupdates", "times": 1}),
    ("hang", {"hang_ms": 300, "times": 2}),
    ("no_hold", {"times": 5}),
    ("honour_hold", {}),
    ("duplicate", {"mode": "same_batch", "times": 2}),
    ("duplicate", {"mode": "next_poll", "times": 2}),
    ("duplicate", {"mode": "new_id", "times": 2}),
    ("replay", {"after_ms": 50, "times": 2}),
    ("odd_cursor", {"value": "empty", "times": 1}),
    ("odd_cursor", {"value": "absent", "times": 1}),
    *(("odd_hint", {"value": value, "times": 1}) for value in (None, 0, -1, "35000", 1e12)),
    ("ret_zero", {}),
    ("string_ids", {}),
    ("huge_ids", {"times": 3}),
    ("id_only_quotes", {}),
    ("strict_headers", {}),
]
ON_SENDS: list[Trouble] = [
    *((name, {"path": "sendmessage", "times": 1}) for name in SPOILT if name != "http_status"),
    *(("http_status", {"path": "sendmessage", "times": 1, "status": status}) for status in (429, 500, 524)),
    ("fixed_answer", {"path": "sendmessage", "times": 1, "body": {"ret": -77}}),
    ("stale_session", {"path": "sendmessage", "times": 1}),
    ("reject_send", {"times": 1}),
    ("reject_send", {"times": 1, "envelope": "errcode", "code": -9}),
    ("throttle", {"count": 2, "window_ms": 200, "pause_ms": 300}),
    *(("no_message_id", {"times": 1, "answer": answer}) for answer in ("ret", "object", "empty")),
    ("no_message_id", {"times": 1, "delivery": "delivered"}),
    ("truncate_text", {"limit": 5, "times": 1}),
    ("refuse_typing", {"times": 3}),
    ("refuse_typing", {"path": "sendtyping", "times": 3}),
]
# About pictures and files alone; what becomes of those is tested in tests/supervisor/channels.
OF_MEDIA = {
    *("refuse_upload", "upload_param_only", "no_upload_url", "param_upload_fails", "no_encrypted_param"),
    *("short_download", "bad_padding", "wrong_key"),
}
# never_answer takes 15 s and more each (tests/promises/test_supervisor_death.py); every home here has rewind set.
ELSEWHERE = {"never_answer", "rewind"}
PAIRS = random.Random(7).sample([(one, two) for one in ON_POLLS for two in ON_SENDS], 14)
GROUPS: dict[str, list[tuple[Trouble, ...]]] = {
    "polls": [(one,) for one in ON_POLLS],
    "sends": [(one,) for one in ON_SENDS],
    "pairs": list(PAIRS),
}


def test_every_switch_has_its_place() -> None:
    known = {switch.__struct_config__.tag for switch in faults.Known.__args__}

    assert {name for name, _ in (*ON_POLLS, *ON_SENDS)} | OF_MEDIA | ELSEWHERE == known


@pytest.mark.timeout(600)
@pytest.mark.parametrize("group", GROUPS)
def test_in_any_trouble_every_message_has_one_outcome_and_nothing_comes_twice(group: str) -> None:
    with ChaosHome(5, agent=Agent.SCRIPTED, kept=True, hold_s=1.0) as home:
        for troubles in GROUPS[group]:
            before = len(home.figures.violations)
            for name, parameters in troubles:
                home.wechat.set_fault(name, **parameters)
            home.say()
            home.say()
            home.until_quiet()
            for name, _ in troubles:
                home.wechat.clear_faults(name)
            home.settle(violations_in_trouble)
            assert len(home.figures.violations) == before, (troubles, home.figures.violations, home.tail())
        assert home.figures.states["answered"] > len(GROUPS[group])
