import inspect
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.to_supervisor import DialogKind, DialogPurpose
from protocol.to_worker import Confirmed, Picked
from supervisor import notices
from supervisor.core.answers import Choice, Question, Why, Word
from supervisor.core.bubbles import LINE_BYTES, LINE_ROOM, json_bytes, utf16_units
from supervisor.notices import HistoryLine, Notice, Standing, history_lines, one_line, status_lines

SELECT = Question(
    DialogKind.SELECT,
    DialogPurpose.QUESTION,
    "2 + 2?",
    "",
    (Choice(Picked("a"), "4"), Choice(Picked("b"), "5", hint="?")),
    other=True,
)
ALLOW = Question(
    DialogKind.CONFIRM,
    DialogPurpose.PERMISSION,
    "rm -r build",
    "cd /w && rm -r build",
    (Choice(Confirmed(True), word=Word.YES, dangerous=True), Choice(Confirmed(False), word=Word.NO)),
)
CONFIRM = Question(
    DialogKind.CONFIRM,
    DialogPurpose.QUESTION,
    "Ready?",
    "",
    (Choice(Confirmed(True), word=Word.YES), Choice(Confirmed(False), word=Word.NO)),
)
EDITOR = Question(DialogKind.EDITOR, DialogPurpose.QUESTION, "Commit message", "", prefill="Fix it\n\nReally.")
PLAN = Question(
    DialogKind.EDITOR,
    DialogPurpose.PLAN_REVIEW,
    "Move the tests",
    "# Plan\n\n" + "\n".join(f"{n}. step" for n in range(1, 9)),
    (
        Choice(Picked("go"), word=Word.GO),
        Choice(Picked("keep"), word=Word.KEEP),
        Choice(Picked("leave"), word=Word.LEAVE),
    ),
    other=True,
)
IDLE = Standing(running_s=None, question="", waiting=0, parked=0, budget_left=10, turns_left=None)
ONE_LINERS: list[Notice] = [
    notices.waiting_behind_own(),
    notices.waiting_behind_others(),
    notices.waiting_for_room(),
    notices.waiting_for_start(),
    notices.still_waiting_for_start(),
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
    notices.file_not_sent("plan.pdf"),
    notices.attachment_unreadable([]),
    notices.attachment_unreadable(["a.pdf", "b\nc.png"]),
    notices.voice_without_words(),
    notices.video_not_understood(),
    notices.new_done(),
    notices.new_while_running(),
    notices.new_owner_only(),
    notices.question_reminder(SELECT, left_s=90.0),
    notices.question_expired(SELECT),
    notices.question_expired(PLAN),
    notices.question_withdrawn(),
    notices.queued_behind_question(),
]
SEVERAL_LINES: list[Notice] = [
    notices.help_lines(),
    status_lines(IDLE),
    history_lines([]),
    notices.question_lines(SELECT),
    notices.question_again_lines(SELECT, Why.NO_SUCH_CHOICE),
    notices.plan_text_lines("1. look"),
    notices.plan_cut_lines("1. look", chars=3),
]
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
        (notices.file_not_sent("plan.pdf"), "plan.pdf"),
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


def test_status_does_not_call_a_peer_idle_whose_message_waits() -> None:
    waits = Standing(running_s=None, question="", waiting=1, parked=0, budget_left=6, turns_left=None)
    starts = Standing(running_s=None, question="", waiting=1, parked=0, budget_left=6, turns_left=None, starting=True)

    assert status_lines(waits).en.splitlines()[0] == "1 message is waiting."
    assert status_lines(starts).en.splitlines()[:2] == ["Getting ready.", "1 message is waiting."]
    assert status_lines(starts).zh.splitlines()[:2] == ["正在准备。", "排着 1 条。"]


def test_history_shows_each_message_in_one_line_and_flags_what_has_not_arrived() -> None:
    lines = [HistoryLine(True, "hi\nthere"), HistoryLine(False, "x" * 500, "parked"), HistoryLine(False, "ok")]

    shown = history_lines(lines)

    assert shown.en.splitlines() == ["You: hi there", f"Me: (not sent yet) {'x' * 119}…", "Me: ok"]
    assert shown.zh.splitlines()[0] == "你：hi there"


def test_a_list_is_numbered_and_says_how_to_answer_it() -> None:
    assert notices.question_lines(SELECT).zh == (
        "2 + 2?\n\n1. 4\n2. 5（?）\n3. 其他，直接打字\n\n回数字，或直接打字回答；不想答就回“取消”。"
    )
    assert notices.question_lines(SELECT).en == (
        "2 + 2?\n\n1. 4\n2. 5 (?)\n3. Something else: just type it\n\n"
        "Reply with a number or with your own words, or “cancel”."
    )


def test_free_text_is_offered_only_where_it_is_an_answer() -> None:
    closed = replace(SELECT, other=False)

    for language in ("zh", "en"):
        words = notices.question_lines(closed).text(language)
        assert "打字" not in words and "type" not in words and "words" not in words and "3." not in words


def test_a_dangerous_yes_is_asked_as_a_numbered_pair_and_a_harmless_one_as_yes_or_no() -> None:
    assert "1. 可以\n2. 不可以" in notices.question_lines(ALLOW).zh
    assert "1. Yes\n2. No" in notices.question_lines(ALLOW).en
    assert "1." not in notices.question_lines(CONFIRM).zh and "“是”或“否”" in notices.question_lines(CONFIRM).zh
    assert "yes or no" in notices.question_lines(CONFIRM).en


def test_an_editor_shows_its_text_and_says_that_a_reply_replaces_it() -> None:
    notice = notices.question_lines(EDITOR)

    assert "Fix it\n\nReally." in notice.zh and "替换" in notice.zh
    assert "Fix it\n\nReally." in notice.en and "replaces" in notice.en


def test_a_plan_review_shows_the_first_steps_the_mode_and_three_actions_in_one_bubble() -> None:
    notice = notices.question_lines(PLAN)

    assert notice.zh.startswith(
        "计划好了：Move the tests\n\n# Plan\n1. step\n2. step\n3. step\n4. step\n…\n\n现在还在计划模式"
    )
    assert "1. 开始执行\n2. 继续计划\n3. 退出计划" in notice.zh
    assert "1. Go ahead\n2. Keep planning\n3. Leave plan mode" in notice.en
    assert utf16_units(notice.zh) < 600 and utf16_units(notice.en) < 600


def test_asked_again_a_question_names_the_reason_and_the_way_to_answer() -> None:
    for why in Why:
        notice = notices.question_again_lines(ALLOW, why)
        assert ("1. 可以" in notice.zh) is (why is not Why.TYPE_IT)
        assert CHINESE.search(notice.zh) and not CHINESE.search(notice.en)


def test_of_a_long_body_the_end_is_shown_too_and_what_is_left_out_is_said() -> None:
    long = replace(ALLOW, body="echo " + "x" * 5000 + "; rm -rf /")

    for language in ("zh", "en"):
        words = notices.question_lines(long).text(language)
        assert words.count("; rm -rf /") == 1 and "3615" in words
        assert utf16_units(words) < 2000


@given(title=st.text(max_size=300), label=st.text(max_size=300), body=st.text(max_size=200))
def test_an_agents_words_cannot_pass_for_the_bridges_own(title: str, label: str, body: str) -> None:
    asked = replace(SELECT, title=title, body=body, choices=(Choice(Picked("a"), label), Choice(Picked("b"), "5")))

    for words in (notices.question_lines(asked).zh, notices.question_lines(asked).en):
        assert all(letter.isprintable() or letter in "\n\t\u200d" for letter in words)
        *_, first, second, third, _, hint = words.split("\n")
        assert first.startswith("1. ") and second == "2. 5" and third.startswith("3. ")
        assert hint in (
            notices.question_lines(SELECT).zh.split("\n")[-1],
            notices.question_lines(SELECT).en.split("\n")[-1],
        )


def test_help_names_every_command_and_the_operators_own() -> None:
    for words in (notices.help_lines(snippets=["standup"]).zh, notices.help_lines(snippets=["standup"]).en):
        assert all(command in words for command in ("/new", "/stop", "/status", "/history", "/help", "/standup"))
