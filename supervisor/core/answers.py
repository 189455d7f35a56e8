"""What is asked, as it can be drawn in a chat, and what a reply to it says.

In come a worker's Asked and a peer's words; out go a Question (or None: it cannot be drawn) and a Reading of the words.
Only what the question offers can come out of a reply. notices.py words a Question; dialog.py says whether a reply counts.
"""

import re
import unicodedata
from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never

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
from supervisor.core.admission import cap, sanitise

TITLE_CHARS = 200
LABEL_CHARS = 200
PREFILL_CHARS = 6000  # a longer one cannot be shown whole, and a reply would replace what was never seen
CHOICES_MOST = 40  # more is no list to choose from on a phone


class Word(StrEnum):
    """Choices that the bridge words itself, in the peer's language."""

    YES = "yes"
    NO = "no"
    GO = "go"
    KEEP = "keep"
    LEAVE = "leave"
    ALWAYS = "always"  # followed by the rule


# As they may be typed instead of the number; notices.py shows the first of each language.
WORDS: dict[Word, tuple[tuple[str, ...], tuple[str, ...]]] = {
    Word.YES: (("可以",), ("Yes",)),
    Word.NO: (("不可以",), ("No",)),
    Word.GO: (("开始执行",), ("Go ahead", "go")),
    Word.KEEP: (("继续计划",), ("Keep planning", "keep")),
    Word.LEAVE: (("退出计划",), ("Leave plan mode", "leave")),
    Word.ALWAYS: (("以后都同意",), ("Always allow",)),
}


@dataclass(frozen=True, slots=True)
class Choice:
    """label: the agent's own words; empty where `word` says it. rule: kept when this is chosen."""

    answer: DialogAnswer
    label: str = ""
    hint: str = ""
    word: Word | None = None
    dangerous: bool = False
    rule: str = ""


@dataclass(frozen=True, slots=True)
class Question:
    """choices   numbered from 1 as they stand here
    other     text of the peer's own is an answer too
    numbered  the numbers are shown: all but a harmless yes or no
    """

    kind: DialogKind
    purpose: DialogPurpose
    title: str
    body: str
    choices: tuple[Choice, ...] = ()
    other: bool = False
    prefill: str = ""

    @property
    def numbered(self) -> bool:
        return bool(self.choices) and (self.kind is not DialogKind.CONFIRM or self.dangerous)

    @property
    def dangerous(self) -> bool:
        return any(choice.dangerous for choice in self.choices)


class Rules(StrEnum):
    """Whether "always" answers may be offered."""

    KEPT = "kept"
    LEFT_OUT = "left_out"


def drawn(asked: Asked, rules: Rules) -> Question | None:
    """The question as the peer can be asked; None = it cannot be drawn, and is declined."""
    title, body = _line(asked.title, TITLE_CHARS), sanitise(asked.body).strip()
    if asked.purpose is DialogPurpose.PLAN_REVIEW:
        actions = (
            Choice(Picked(PLAN_GO), word=Word.GO),
            Choice(Picked(PLAN_KEEP), word=Word.KEEP),
            Choice(Picked(PLAN_LEAVE), word=Word.LEAVE),
        )
        return Question(asked.kind, asked.purpose, title, body, actions, other=True)
    match asked.kind:
        case DialogKind.SELECT:
            choices = tuple(c for option in asked.options if (c := _choice(option, rules, asked.purpose)) is not None)
            if len(choices) > CHOICES_MOST or not choices:
                return None
            if [choice.word for choice in choices] == [Word.YES, Word.NO] and not asked.other_allowed:
                # Nothing but yes and no is left: any word for them will do, as in a confirm.
                return Question(DialogKind.CONFIRM, asked.purpose, title, body, choices) if title or body else None
            return Question(asked.kind, asked.purpose, title, body, choices, other=asked.other_allowed)
        case DialogKind.CONFIRM:
            return Question(asked.kind, asked.purpose, title, body, _pair(asked.options)) if title or body else None
        case DialogKind.INPUT | DialogKind.EDITOR:
            prefill = sanitise(asked.prefill)
            if len(prefill) > PREFILL_CHARS or not (title or body or prefill):
                return None
            return Question(asked.kind, asked.purpose, title, body, prefill=prefill)
    assert_never(asked.kind)


_WORDED = {ALLOW_ONCE: Word.YES, REFUSE: Word.NO}


def _choice(option: DialogOption, rules: Rules, purpose: DialogPurpose) -> Choice | None:
    if option.rule:
        rule = _line(option.rule, RULE_CHARS)
        if rules is Rules.LEFT_OUT or rule != option.rule:
            return None
        # What is kept for good is what the peer reads: the rule itself, not a label beside it.
        return Choice(Picked(option.option_id), word=Word.ALWAYS, dangerous=True, rule=rule)
    label, hint = _line(option.label, LABEL_CHARS), _line(option.hint, LABEL_CHARS)
    if not label and purpose is DialogPurpose.PERMISSION and option.option_id in _WORDED:
        return Choice(Picked(option.option_id), word=_WORDED[option.option_id], dangerous=option.dangerous)
    return Choice(Picked(option.option_id), label, hint, dangerous=option.dangerous)


def _pair(options: tuple[DialogOption, ...]) -> tuple[Choice, Choice]:
    dangerous = any(option.dangerous for option in options)
    labels = [_line(option.label, LABEL_CHARS) for option in options]
    if len(labels) != 2 or not all(labels) or (plain(labels[0]) in YES and plain(labels[1]) in NO):
        labels = ["", ""]  # ours are in the peer's language
    yes, no = labels
    return (
        Choice(Confirmed(True), yes, word=None if yes else Word.YES, dangerous=dangerous),
        Choice(Confirmed(False), no, word=None if no else Word.NO),
    )


# --- reading a reply ------------------------------------------------------------------------------------------


class Why(StrEnum):
    """Why a reply is no answer yet."""

    NO_SUCH_NUMBER = "no_such_number"
    NO_SUCH_CHOICE = "no_such_choice"
    NEEDS_NUMBER = "needs_number"  # a dangerous one is not picked by a word
    SEVERAL = "several"  # choices with the same words
    YES_OR_NO = "yes_or_no"
    TYPE_IT = "type_it"  # the "other" entry was picked: its text is still to come


@dataclass(frozen=True, slots=True)
class Answered:
    answer: DialogAnswer
    rule: str = ""


@dataclass(frozen=True, slots=True)
class Declined:
    """The peer would not answer."""


@dataclass(frozen=True, slots=True)
class Unclear:
    why: Why


Reading = Answered | Declined | Unclear

CANCEL = frozenset({"取消", "退出", "cancel", "quit", "exit"})
YES = frozenset(
    {"是", "是的", "好", "好的", "好吧", "好啊", "行", "可以", "确定", "确认", "同意", "允许", "对", "对的", "嗯", "要"}
    | {"没问题", "yes", "y", "yeah", "yep", "yup", "ok", "okay", "sure"}
)
NO = frozenset(
    {"否", "不", "不是", "不行", "不好", "不对", "不可以", "不要", "不用", "不同意", "不允许", "不确定", "拒绝", "别"}
    | {"算了", "no", "n", "nope", "nah"}
)

_AROUND = " \t\n\u3000.。,，!！~～、;；:：'\"“”‘’「」『』()（）[]【】…"
_KEYCAP = dict.fromkeys((0xFE0F, 0x20E3))  # the emoji of a number is that number
_DIGITS = {digit: value for value, digit in enumerate("零一二三四五六七八九")} | {"两": 2}
_NUMBER = re.compile(
    r"[(\[]?\s*(?:(?:我?选择?|第|option|number|no\.|#)\s*)*"
    r"(?:(?P<digits>\d{1,4})|(?P<chinese>[一二两三四五六七八九]?十[一二三四五六七八九]?|[一二两三四五六七八九]))"
    r"\s*(?:个|项|条|号|种)?(?:选项)?\s*[)\].。、,，:;!~]*"
)
_NUMBER_AND_TEXT = re.compile(r"(?P<digits>\d{1,4})\s*[.、)::,，]?\s*(?P<text>\S.*)", re.DOTALL)


def read(question: Question, text: str, *, picked_other: bool = False) -> Reading:
    """What a reply says. picked_other: the "other" entry was chosen before, so that this is its text."""
    word = plain(text)
    if picked_other or question.kind in (DialogKind.INPUT, DialogKind.EDITOR) and not question.choices:
        return Declined() if word in CANCEL else Answered(Typed(text.strip()))
    number = number_in(text)
    choices = question.choices
    if number is not None and 1 <= number <= len(choices):
        return _chosen(choices[number - 1])
    if number is not None and number == len(choices) + 1 and _lists_other(question):
        return Unclear(Why.TYPE_IT)
    named = _named(question, text, word)
    if len(named) == 1 and not named[0].dangerous:
        return _chosen(named[0])
    if word in CANCEL:
        return Declined()
    if named:
        return Unclear(Why.NEEDS_NUMBER if any(choice.dangerous for choice in named) else Why.SEVERAL)
    if question.kind is DialogKind.CONFIRM and question.purpose is not DialogPurpose.PLAN_REVIEW:
        if word in NO:
            return _chosen(choices[1])
        if word in YES:
            return Unclear(Why.NEEDS_NUMBER) if choices[0].dangerous else _chosen(choices[0])
        return Unclear(Why.NO_SUCH_NUMBER if number is not None else Why.YES_OR_NO)
    if question.purpose is DialogPurpose.PLAN_REVIEW and (number is not None or word in YES or word in NO):
        return Unclear(Why.NEEDS_NUMBER)  # a word of agreement is neither one of the three nor something to revise
    if question.other:
        return Answered(Typed(text.strip()))
    if word in YES and question.dangerous:
        return Unclear(Why.NEEDS_NUMBER)
    return Unclear(Why.NO_SUCH_NUMBER if number is not None else Why.NO_SUCH_CHOICE)


def _lists_other(question: Question) -> bool:
    """A plan review takes text without an entry for it."""
    return question.other and question.purpose is not DialogPurpose.PLAN_REVIEW


def _chosen(choice: Choice) -> Answered:
    return Answered(choice.answer, choice.rule)


def _named(question: Question, text: str, word: str) -> list[Choice]:
    """The choices whose own words these are, or whose number and words."""
    named = [choice for choice in question.choices if word and word in _names(choice)]
    together = _NUMBER_AND_TEXT.fullmatch(_folded(text))
    if not named and together is not None and 1 <= int(together["digits"]) <= len(question.choices):
        choice = question.choices[int(together["digits"]) - 1]
        if plain(together["text"]) in _names(choice):
            # With its number, a dangerous one too.
            return [Choice(choice.answer, rule=choice.rule)]
    return named


def _names(choice: Choice) -> set[str]:
    if choice.word is None:
        return {plain(choice.label)} - {""}
    chinese, english = WORDS[choice.word]
    return {plain(f"{name} {choice.rule}") for name in (*chinese, *english)}


def number_in(text: str) -> int | None:
    """The number that a reply consists of: 2, ２, 2., 2、, (2), ②, 2️⃣, 第二个, 选2."""
    found = _NUMBER.fullmatch(_folded(text))
    if found is None:
        return None
    if found["digits"]:
        return int(found["digits"])
    tens, ten, ones = found["chinese"].rpartition("十")
    if not ten:
        return _DIGITS[ones]
    return 10 * _DIGITS.get(tens, 1) + _DIGITS.get(ones, 0)


def plain(text: str) -> str:
    """For comparing: one width, one case, no marks around."""
    folded = " ".join(_folded(text).split())
    return folded.strip(_AROUND) or folded


def _folded(text: str) -> str:
    return unicodedata.normalize("NFKC", text).translate(_KEYCAP).casefold().strip()


def _line(text: str, limit: int) -> str:
    return cap(" ".join(sanitise(text).split()), limit)[0]
