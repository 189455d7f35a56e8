import inspect
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor import notices
from supervisor.core.bubbles import LINE_BYTES, LINE_ROOM, json_bytes, utf16_units
from supervisor.notices import HistoryLine, Notice, Standing, history_lines, one_line, status_lines

IDLE = Standing(running_s=None, question="", waiting=0, parked=0, budget_left=10, turns_left=None)
ONE_LINERS: list[Notice] = [
    notices.waiting_behind_own(),
    notices.waiting_behind_others(),
    notices.waiting_for_room(),
    notices.still_waiting_behind_own(),
    notices.still_waiting_behind_others(),
    notices.still_working(),
    notices.stopped(),
    notices.stopped(waiting=1),
    notices.stopped(waiting=3),
    notices.nothing_running(),
    notices.parked_dropped(1),
    notices.parked_dropped(4),
    notices.empty(),
    notices.failed(),
    notices.broke_off(),
    notices.timed_out(),
    notices.took_too_much(),
    notices.cut_off(),
    notices.limited(),
    notices.declined(),
    notices.interrupted(),
    notices.not_started(),
    notices.starts_paused(),
    notices.not_configured("OPENAI_API_KEY"),
    notices.not_isolated(),
    notices.not_isolated_operator(),
    notices.queue_full(waiting=8),
    notices.backlog_closed(12),
    notices.hourly_limit(wait_s=61),
    notices.token_budget(wait_s=7 * 3600),
    notices.closing_running(),
    notices.closing_waiting(2),
    notices.closing_both(1),
    notices.logged_out(waiting=0),
    notices.logged_out(waiting=2),
    notices.more_waiting(),
    notices.file_too_large("plan.pdf"),
    notices.attachment_unreadable([]),
    notices.attachment_unreadable(["a.pdf", "b\nc.png"]),
    notices.voice_without_words(),
    notices.video_not_understood(),
    notices.new_done(),
    notices.new_while_running(),
    notices.new_owner_only(),
]
SEVERAL_LINES: list[Notice] = [notices.help_lines(), status_lines(IDLE), history_lines([])]
CHINESE = re.compile("[\u4e00-\u9fff]")


@pytest.mark.parametrize("notice", ONE_LINERS, ids=lambda notice: notice.key)
def test_a_notice_is_one_line_in_either_language(notice: Notice) -> None:
    assert "\n" not in notice.zh and "\n" not in notice.en
    assert CHINESE.search(notice.zh) and not CHINESE.search(notice.en)
    assert 0 < len(notice.zh) < 80 and 0 < len(notice.en) < 140


def test_every_notice_of_the_catalogue_is_looked_at_here_and_goes_by_its_functions_name() -> None:
    functions = {
        name
        for name, function in inspect.getmembers(notices, inspect.isfunction)
        if inspect.signature(function).return_annotation is Notice
    }

    assert {notice.key for notice in ONE_LINERS} | {f"{notice.key}_lines" for notice in SEVERAL_LINES} == functions


def test_no_two_notices_say_the_same() -> None:
    by_key = {notice.key: notice for notice in ONE_LINERS}

    assert len({notice.zh for notice in by_key.values()}) == len(by_key)
    assert len({notice.en for notice in by_key.values()}) == len(by_key)


def test_a_peer_reads_chinese_or_else_english() -> None:
    assert notices.stopped().text("zh") == notices.stopped().zh
    assert notices.stopped().text("en") == notices.stopped().en


def test_the_line_that_says_more_is_waiting_fits_the_room_left_for_it() -> None:
    for language in ("zh", "en"):
        line = "\n\n" + notices.more_waiting().text(language)

        assert utf16_units(line) <= LINE_ROOM
        assert json_bytes(line) <= LINE_BYTES


@pytest.mark.parametrize(
    ("notice", "named"),
    [
        (notices.still_working(), "/stop"),
        (notices.declined(), "/new"),
        (notices.new_while_running(), "/stop"),
        (notices.stopped(waiting=3), "3"),
        (notices.backlog_closed(12), "12"),
        (notices.queue_full(waiting=8), "8"),
        (notices.file_too_large("plan.pdf"), "plan.pdf"),
        (notices.not_configured("OPENAI_API_KEY"), "OPENAI_API_KEY"),
    ],
    ids=lambda value: value.key if isinstance(value, Notice) else str(value),
)
def test_a_notice_names_the_way_out(notice: Notice, named: str) -> None:
    assert named in notice.zh
    assert named in notice.en


@pytest.mark.parametrize(
    ("wait_s", "zh", "en"),
    [
        (0.0, "1 分钟后", "in 1 minute."),
        (61.0, "2 分钟后", "in 2 minutes."),
        (3600.0, "60 分钟后", "in 60 minutes."),
        (7 * 3600.0, "7 小时后", "in 7 hours."),
    ],
)
def test_a_limit_says_when_the_next_message_is_taken(wait_s: float, zh: str, en: str) -> None:
    assert zh in notices.hourly_limit(wait_s=wait_s).zh
    assert en in notices.hourly_limit(wait_s=wait_s).en


@given(name=st.text())
@settings(deadline=None)
def test_a_name_from_outside_cannot_break_the_line_or_fill_the_screen(name: str) -> None:
    shown = one_line(name)

    assert len(shown) <= notices.NAME_CHARS
    assert len(shown.splitlines()) <= 1
    assert "\u202e" not in shown


def test_status_tells_what_runs_what_waits_and_what_is_left() -> None:
    busy = Standing(running_s=75.0, question="Which one?", waiting=2, parked=1, budget_left=6, turns_left=4)

    assert status_lines(busy).en.splitlines() == [
        "Working, 1 minute so far.",
        "Waiting for your answer: Which one?",
        "2 messages are waiting.",
        "1 part not sent to you yet.",
        "I can send 6 more messages before you write again.",
        "4 turns left this hour.",
    ]
    assert status_lines(IDLE).zh.splitlines() == ["现在空着。", "在你下次发消息前，我还能发 10 条。"]


def test_history_shows_each_message_in_one_line_and_flags_what_has_not_arrived() -> None:
    lines = [HistoryLine(True, "hi\nthere"), HistoryLine(False, "x" * 500, "parked"), HistoryLine(False, "ok")]

    shown = history_lines(lines)

    assert shown.en.splitlines() == ["You: hi there", f"Me: (not sent yet) {'x' * 119}…", "Me: ok"]
    assert shown.zh.splitlines()[0] == "你：hi there"


def test_help_names_every_command_and_the_operators_own() -> None:
    for words in (notices.help_lines(snippets=["standup"]).zh, notices.help_lines(snippets=["standup"]).en):
        assert all(command in words for command in ("/new", "/stop", "/status", "/history", "/help", "/standup"))
