import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.ids import DialogId, TurnId
from protocol.to_supervisor import (
    ALLOW_ONCE,
    PLAN_GO,
    PLAN_KEEP,
    PLAN_LEAVE,
    REFUSE,
    RULE_CHARS,
    Asked,
    DialogKind,
    DialogOption,
    DialogPurpose,
)
from protocol.to_worker import Confirmed, DialogAnswer, Picked, Typed
from supervisor.core.answers import (
    CHOICES_MOST,
    PREFILL_CHARS,
    Answered,
    Declined,
    Question,
    Rules,
    Unclear,
    Why,
    Word,
    drawn,
    number_in,
    read,
)

FRUIT = (DialogOption("a", "Apple"), DialogOption("p", "梨"), DialogOption("c", "Cherry pie"))


def asked(
    kind: DialogKind = DialogKind.SELECT,
    *options: DialogOption,
    purpose: DialogPurpose = DialogPurpose.QUESTION,
    title: str = "Which one?",
    body: str = "",
    prefill: str = "",
    other: bool = False,
) -> Asked:
    return Asked(TurnId("1"), DialogId("d"), kind, purpose, title, body, options, prefill, other)


def question(message: Asked, rules: Rules = Rules.LEFT_OUT) -> Question:
    found = drawn(message, rules)
    assert found is not None
    return found


SELECT = question(asked(DialogKind.SELECT, *FRUIT))
OPEN_SELECT = question(asked(DialogKind.SELECT, *FRUIT, other=True))
CONFIRM = question(asked(DialogKind.CONFIRM))
ALLOW = question(
    asked(
        DialogKind.CONFIRM,
        DialogOption("yes", "Allow", dangerous=True),
        DialogOption("no", "Reject"),
        purpose=DialogPurpose.PERMISSION,
    )
)
INPUT = question(asked(DialogKind.INPUT))
EDITOR = question(asked(DialogKind.EDITOR, prefill="the old text"))
PLAN = question(asked(DialogKind.EDITOR, purpose=DialogPurpose.PLAN_REVIEW, body="1. look\n2. leap"))


# --- numbers


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (text, 1)
        for text in [
            "1",
            "１",
            "1.",
            "1、",
            "1)",
            "（1）",
            "(1)",
            "第一个",
            "第1个",
            "一",
            "①",
            "1️⃣",
            "选1",
            "我选一",
            "option 1",
            "No. 1",
            " 1 ",
            "1。",
            "1号",
            "#1",
            "第一",
        ]
    ]
    + [("2", 2), ("两", 2), ("第二项", 2), ("十", 10), ("第十二个", 12), ("二十", 20), ("二十三", 23), ("40", 40)],
)
def test_a_number_counts_however_it_is_written(text: str, number: int) -> None:
    assert number_in(text) == number


@pytest.mark.parametrize(
    "text", ["", "one", "1 2", "1或2", "1.5", "not 1", "一个都不要", "百", "-1", "1 apple", "第", "12345", "一一"]
)
def test_what_is_not_a_number_alone_is_none(text: str) -> None:
    assert number_in(text) is None


# --- select


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("2", Picked("p")),
        ("３", Picked("c")),
        ("apple", Picked("a")),
        (" Apple. ", Picked("a")),
        ("梨！", Picked("p")),
        ("CHERRY  PIE", Picked("c")),
        ("1. Apple", Picked("a")),
        ("3 cherry pie", Picked("c")),
    ],
)
def test_a_list_is_answered_by_number_or_by_an_options_own_words(text: str, answer: DialogAnswer) -> None:
    assert read(SELECT, text) == Answered(answer)
    assert read(OPEN_SELECT, text) == Answered(answer)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("4", Why.NO_SUCH_NUMBER),
        ("0", Why.NO_SUCH_NUMBER),
        ("banana", Why.NO_SUCH_CHOICE),
        ("1 cherry pie", Why.NO_SUCH_CHOICE),
        ("yes", Why.NO_SUCH_CHOICE),
        ("", Why.NO_SUCH_CHOICE),
    ],
)
def test_free_text_is_no_answer_to_a_list_without_an_other_entry(text: str, why: Why) -> None:
    assert read(SELECT, text) == Unclear(why)


def test_free_text_is_an_answer_where_the_list_has_an_other_entry() -> None:
    assert read(OPEN_SELECT, " two kiwis, please ") == Answered(Typed("two kiwis, please"))
    assert read(OPEN_SELECT, "12") == Answered(Typed("12"))


def test_the_other_entrys_number_asks_for_its_text_and_then_anything_is_that_text() -> None:
    assert read(OPEN_SELECT, "4") == Unclear(Why.TYPE_IT)
    assert read(OPEN_SELECT, "1", picked_other=True) == Answered(Typed("1"))
    assert read(OPEN_SELECT, "取消", picked_other=True) == Declined()


def test_options_that_read_the_same_need_their_number() -> None:
    twins = question(asked(DialogKind.SELECT, DialogOption("x", "Retry"), DialogOption("y", "retry")))

    assert read(twins, "retry") == Unclear(Why.SEVERAL)
    assert read(twins, "2") == Answered(Picked("y"))


def test_an_option_may_be_called_like_a_cancel_word() -> None:
    vim = question(asked(DialogKind.SELECT, DialogOption("w", "Save"), DialogOption("q", "Quit")))

    assert read(vim, "quit") == Answered(Picked("q"))
    assert read(vim, "cancel") == Declined()


# --- confirm


@pytest.mark.parametrize("text", ["是", "好", "确定", "可以", "yes", "Y", "ok", "YES!", "好的。", "1", "Ｙｅｓ"])
def test_a_yes(text: str) -> None:
    assert read(CONFIRM, text) == Answered(Confirmed(True))


@pytest.mark.parametrize("text", ["否", "不", "不是", "no", "N", "不要", "No.", "2", "算了"])
def test_a_no(text: str) -> None:
    assert read(CONFIRM, text) == Answered(Confirmed(False))
    assert read(ALLOW, text) == Answered(Confirmed(False)), "to refuse needs no ceremony"


@pytest.mark.parametrize("text", ["maybe", "yes and no", "3", "好吗", "yes?", "是不是", ""])
def test_neither_a_yes_nor_a_no(text: str) -> None:
    assert isinstance(read(CONFIRM, text), Unclear)


def test_the_labels_of_a_confirm_count_as_its_words() -> None:
    pair = question(asked(DialogKind.CONFIRM, DialogOption("k", "Keep"), DialogOption("t", "Throw away")))

    assert read(pair, "keep") == Answered(Confirmed(True))
    assert read(pair, "throw away") == Answered(Confirmed(False))
    assert read(pair, "yes") == Answered(Confirmed(True))


# --- dangerous


@pytest.mark.parametrize("text", ["yes", "好", "ok", "是", "allow", "Allow!"])
def test_a_dangerous_choice_needs_its_number_not_a_bare_yes(text: str) -> None:
    """B-014"""
    risky = question(
        asked(DialogKind.SELECT, DialogOption("rm", "Allow", dangerous=True), DialogOption("no", "Reject"))
    )

    assert read(ALLOW, text) == Unclear(Why.NEEDS_NUMBER)
    assert read(risky, text) == Unclear(Why.NEEDS_NUMBER)
    assert read(ALLOW, "1") == Answered(Confirmed(True))
    assert read(ALLOW, "1. Allow") == Answered(Confirmed(True))
    assert read(risky, "第一个") == Answered(Picked("rm"))
    assert read(risky, "reject") == Answered(Picked("no"))
    assert ALLOW.numbered and not CONFIRM.numbered


# --- input, editor


@pytest.mark.parametrize("what", [INPUT, EDITOR], ids=["input", "editor"])
def test_text_is_taken_as_written(what: Question) -> None:
    assert read(what, "  1. Yes\n  2. no ") == Answered(Typed("1. Yes\n  2. no"))
    assert read(what, "/usr/bin") == Answered(Typed("/usr/bin"))
    assert read(what, "cancel the order") == Answered(Typed("cancel the order"))


@pytest.mark.parametrize("what", [SELECT, OPEN_SELECT, CONFIRM, ALLOW, INPUT, EDITOR, PLAN])
@pytest.mark.parametrize("text", ["取消", "退出", "cancel", "QUIT", " Exit. ", "取消！"])
def test_a_cancel_word_as_the_whole_reply_dismisses(what: Question, text: str) -> None:
    assert read(what, text) == Declined()


# --- plan review


@pytest.mark.parametrize(
    ("text", "action"),
    [("1", PLAN_GO), ("2", PLAN_KEEP), ("3", PLAN_LEAVE), ("开始执行", PLAN_GO), ("keep planning", PLAN_KEEP)],
)
def test_a_plan_review_has_three_actions(text: str, action: str) -> None:
    assert read(PLAN, text) == Answered(Picked(action))


@pytest.mark.parametrize("text", ["exit plan mode", "退出 plan 模式", "先写测试", "step 2 is wrong", "/new idea"])
def test_any_other_text_is_feedback_on_the_plan(text: str) -> None:
    assert read(PLAN, text) == Answered(Typed(text))


@pytest.mark.parametrize("text", ["ok", "好", "no", "4", "12"])
def test_a_bare_word_of_agreement_or_a_strange_number_is_no_feedback(text: str) -> None:
    assert read(PLAN, text) == Unclear(Why.NEEDS_NUMBER)


# --- what can be drawn


def test_what_cannot_be_drawn_is_none() -> None:
    too_many = [DialogOption(str(n), str(n)) for n in range(CHOICES_MOST + 1)]

    assert drawn(asked(DialogKind.SELECT), Rules.LEFT_OUT) is None
    assert drawn(asked(DialogKind.SELECT, *too_many), Rules.LEFT_OUT) is None
    assert drawn(asked(DialogKind.CONFIRM, title=" \n"), Rules.LEFT_OUT) is None
    assert drawn(asked(DialogKind.INPUT, title=""), Rules.LEFT_OUT) is None
    assert drawn(asked(DialogKind.EDITOR, prefill="x" * (PREFILL_CHARS + 1)), Rules.LEFT_OUT) is None


def test_an_always_choice_is_offered_only_where_it_may_be_kept_in_its_own_words_and_by_number() -> None:
    always = DialogOption("always", "harmless words", rule="bash git status")
    message = asked(DialogKind.SELECT, DialogOption("once", "Allow once"), always)

    assert [choice.answer for choice in question(message).choices] == [Picked("once")]
    kept = question(message, Rules.KEPT)
    assert kept.choices[1].rule == "bash git status" and kept.choices[1].label == ""
    assert read(kept, "2") == Answered(Picked("always"), rule="bash git status")
    assert read(kept, "harmless words") == Unclear(Why.NO_SUCH_CHOICE)
    assert read(kept, "Always allow bash git status") == Unclear(Why.NEEDS_NUMBER)
    assert read(kept, "1") == Answered(Picked("once"))


ONCE = DialogOption(ALLOW_ONCE, "", dangerous=True)
ALWAYS = DialogOption("always", "", dangerous=True, rule="bash: ls")
NEVER = DialogOption(REFUSE, "")


def test_a_permission_without_labels_is_worded_by_the_bridge_and_answered_by_its_own_ids() -> None:
    message = asked(DialogKind.SELECT, ONCE, ALWAYS, NEVER, purpose=DialogPurpose.PERMISSION)

    kept = question(message, Rules.KEPT)

    assert [choice.word for choice in kept.choices] == [Word.YES, Word.ALWAYS, Word.NO]
    assert [read(kept, number) for number in "123"] == [
        Answered(Picked(ALLOW_ONCE)),
        Answered(Picked("always"), rule="bash: ls"),
        Answered(Picked(REFUSE)),
    ]
    assert read(kept, "可以") == Unclear(Why.NEEDS_NUMBER) and read(kept, "不可以") == Answered(Picked(REFUSE))


def test_where_always_may_not_be_kept_a_plain_yes_or_no_is_left_that_takes_any_word_for_it() -> None:
    harmless = DialogOption(ALLOW_ONCE, "")
    message = asked(DialogKind.SELECT, harmless, ALWAYS, NEVER, purpose=DialogPurpose.PERMISSION)

    left = question(message)

    assert left.kind is DialogKind.CONFIRM and not left.numbered
    assert read(left, "好的") == Answered(Picked(ALLOW_ONCE)) and read(left, "nope") == Answered(Picked(REFUSE))
    dangerous = question(asked(DialogKind.SELECT, ONCE, ALWAYS, NEVER, purpose=DialogPurpose.PERMISSION))
    assert dangerous.numbered and read(dangerous, "yes") == Unclear(Why.NEEDS_NUMBER)
    assert read(dangerous, "1") == Answered(Picked(ALLOW_ONCE))


def test_the_ids_of_a_permission_mean_nothing_in_a_question() -> None:
    choices = question(asked(DialogKind.SELECT, ONCE, NEVER)).choices

    assert [choice.word for choice in choices] == [None, None]


@pytest.mark.parametrize("rule", ["two\nlines", " padded ", "x" * (RULE_CHARS + 1), "bell\a"])
def test_a_rule_that_would_not_be_read_as_it_is_kept_is_left_out(rule: str) -> None:
    message = asked(DialogKind.SELECT, DialogOption("once", "once"), DialogOption("always", "x", rule=rule))

    assert len(question(message, Rules.KEPT).choices) == 1


# --- any question, any reply

words = st.text(max_size=12) | st.sampled_from(["1", "2", "3", "yes", "好", "取消", "x", "opt_7f", "一", "Allow once"])
options = st.builds(DialogOption, words, words, words, st.booleans(), st.sampled_from(["", "", "bash ls"]))
questions = st.builds(
    Asked,
    st.just(TurnId("1")),
    st.just(DialogId("d")),
    st.sampled_from(DialogKind),
    st.sampled_from(DialogPurpose),
    words,
    words,
    st.lists(options, max_size=5).map(tuple),
    words,
    st.booleans(),
)


@given(message=questions, text=words, rules=st.sampled_from(Rules), picked_other=st.booleans())
@settings(max_examples=400, deadline=None)
def test_only_what_a_question_offers_comes_out_of_any_reply(
    message: Asked, text: str, rules: Rules, picked_other: bool
) -> None:
    """B-058: ids of this request alone, unchanged (B-037)."""
    what = drawn(message, rules)
    if what is None:
        return

    reading = read(what, text, picked_other=picked_other and what.other)

    if isinstance(reading, Answered) and isinstance(reading.answer, Picked):
        offered = {PLAN_GO, PLAN_KEEP, PLAN_LEAVE} if message.purpose is DialogPurpose.PLAN_REVIEW else None
        offered = offered or {option.option_id for option in message.options}
        assert reading.answer.option_id in offered
        assert message.purpose is DialogPurpose.PLAN_REVIEW or message.kind is DialogKind.SELECT
    if isinstance(reading, Answered) and isinstance(reading.answer, Typed):
        assert what.other or what.kind in (DialogKind.INPUT, DialogKind.EDITOR)
    if isinstance(reading, Answered) and isinstance(reading.answer, Confirmed):
        assert message.kind is DialogKind.CONFIRM
    if isinstance(reading, Answered) and reading.rule:
        assert rules is Rules.KEPT and reading.rule in {option.rule for option in message.options}
