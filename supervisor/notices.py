"""Everything the bridge itself says to a peer, in Chinese and English. Pure.

One typed function per notice; code and tests go by its key, people see the words. A notice is one line, but for the
answers to /help, /status and /history, and what belongs to a dialog. It tells the peer what to do next, not what broke. An agent never writes one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

from protocol.to_supervisor import DialogKind, DialogPurpose
from supervisor.core import graphemes
from supervisor.core.answers import WORDS, Choice, Question, Why

CHINESE = "zh"
ENGLISH = "en"

NAME_CHARS = 60
HISTORY_CHARS = 120


@dataclass(frozen=True, slots=True)
class Notice:
    key: str
    zh: str
    en: str

    def text(self, language: str) -> str:
        """The words for a peer whose language is "zh"; anything else reads English."""
        return self.zh if language == CHINESE else self.en


# --- waiting --------------------------------------------------------------------------------------------------


def waiting_behind_own() -> Notice:
    return Notice(
        "waiting_behind_own",
        "收到，先把你上一条做完，马上轮到这条。",
        "Got it. Your earlier message comes first, then this one.",
    )


def waiting_behind_others() -> Notice:
    return Notice(
        "waiting_behind_others",
        "收到，现在有别的对话在处理，空出来就回你。",
        "Got it. Other chats are being answered right now; yours is next in line.",
    )


def waiting_for_start() -> Notice:
    return Notice(
        "waiting_for_start",
        "收到，正在准备，好了就回你。",
        "Got it. Still getting ready; your answer comes right after.",
    )


def waiting_for_room() -> Notice:
    return Notice(
        "waiting_for_room",
        "收到，电脑的磁盘快满了，这条先留着，腾出空间就回你。",
        "Got it. This computer's disk is almost full; your message is kept and answered once there is room.",
    )


def still_waiting_behind_own() -> Notice:
    return Notice(
        "still_waiting_behind_own",
        "上一条还没做完，这条没丢，做完就接着回。",
        "Your earlier message is taking a while. This one is kept and comes right after it.",
    )


def still_waiting_behind_others() -> Notice:
    return Notice(
        "still_waiting_behind_others",
        "还在等别的对话结束，你的消息没丢，不用再发。",
        "Still waiting for other chats to finish. Your message is kept, no need to send it again.",
    )


def still_waiting_for_start() -> Notice:
    return Notice(
        "still_waiting_for_start",
        "准备得有点久，你的消息没丢，不用再发。",
        "Getting ready takes longer than usual. Your message is kept, no need to send it again.",
    )


def still_working() -> Notice:
    return Notice("still_working", "还在做，不想等了就发 /stop。", "Still on it. Send /stop if you'd rather not wait.")


# --- how a message ends ---------------------------------------------------------------------------------------


def stopped(*, waiting: int = 0) -> Notice:
    if waiting == 0:
        return Notice("stopped", "已停下。", "Stopped.")
    return Notice("stopped", f"已停下，后面还有 {waiting} 条在等。", f"Stopped. {_messages(waiting)} still waiting.")


def nothing_running() -> Notice:
    return Notice("nothing_running", "现在没有在做的事。", "Nothing is running right now.")


def parked_dropped(count: int) -> Notice:
    return Notice(
        "parked_dropped",
        f"好，剩下没发的 {count} 段不发了。",
        f"OK, the {_count(count, 'unsent part')} of the last answer won't be sent.",
    )


def empty() -> Notice:
    return Notice("empty", "做完了，这次没有要说的文字。", "Done, with nothing to say in words this time.")


def failed() -> Notice:
    return Notice("failed", "这条没处理成，过一会儿再发一次吧。", "That didn't work. Please send it again in a moment.")


def broke_off() -> Notice:
    return Notice(
        "broke_off",
        "说到一半断了，上面的不完整，需要的话再发一次。",
        "The answer broke off here and is incomplete. Send your message again if you need the rest.",
    )


def timed_out() -> Notice:
    return Notice(
        "timed_out",
        "做得太久，先停了。可以把事情拆小一点再发。",
        "That took too long and was stopped. Try again with a smaller step.",
    )


def took_too_much() -> Notice:
    return Notice(
        "took_too_much",
        "这件事占用的电脑资源太多，先停了。可以拆小一点再发。",
        "That took too much of this computer and was stopped. Try again with a smaller step.",
    )


def cut_off() -> Notice:
    return Notice(
        "cut_off",
        "内容太长，先到这里。想看后面的话，让我接着说。",
        "That's as long as one answer can get. Ask me to go on if you want the rest.",
    )


def limited() -> Notice:
    return Notice(
        "limited",
        "到模型一次能写的上限了，想继续就说“接着写”。",
        "The model reached its length limit here. Say “go on” to continue.",
    )


def declined() -> Notice:
    return Notice(
        "declined",
        "模型不肯回答这条。换个说法，或发 /new 重新开始。",
        "The model declined to answer. Put it differently, or send /new to start over.",
    )


def interrupted() -> Notice:
    return Notice(
        "interrupted",
        "刚才重启了，这条没做完，麻烦再发一次。",
        "A restart interrupted this one. Please send it again.",
    )


def not_started() -> Notice:
    return Notice(
        "not_started",
        "没能启动起来，一分钟后再发一次试试。",
        "I couldn't get started. Please send it again in a minute.",
    )


def starts_paused() -> Notice:
    return Notice(
        "starts_paused",
        "连着几次没启动起来，先歇一分钟，之后再发。",
        "Starting failed several times in a row. Please try again after a minute's pause.",
    )


def not_configured(missing: str) -> Notice:
    """missing: the name of a setting or variable, never its value."""
    name = one_line(missing)
    return Notice(
        "not_configured",
        f"这边还没配好，缺少 {name}，补上以后再发。",
        f"Not set up yet: {name} is missing. Send it again once it is there.",
    )


def not_isolated() -> Notice:
    return Notice(
        "not_isolated",
        "这台机器暂时不能安全地为你运行，已记录，请联系管理它的人。",
        "This machine can't run your chat safely at the moment. Please ask whoever runs it.",
    )


def not_isolated_operator() -> Notice:
    return Notice(
        "not_isolated_operator",
        "隔离不完整，所以没有运行，用 bridge-ctl doctor 看缺了什么。",
        "Not run, because its isolation is incomplete. bridge-ctl doctor says what is missing.",
    )


# --- turned away ----------------------------------------------------------------------------------------------


def queue_full(*, waiting: int) -> Notice:
    return Notice(
        "queue_full",
        f"已经有 {waiting} 条在等了，这条先不收，等我回完再发。",
        f"{_messages(waiting)} already waiting, so this one was not taken. Please send it once I've caught up.",
    )


def backlog_closed(count: int) -> Notice:
    return Notice(
        "backlog_closed",
        f"离线期间积得太多，最后 {count} 条没处理，还需要的请再发。",
        f"Too much piled up while I was away: {_count(count, 'message')} not handled. Please resend what still matters.",
    )


def hourly_limit(*, wait_s: float) -> Notice:
    zh, en = _after(wait_s)
    return Notice(
        "hourly_limit",
        f"这一小时的次数用完了，{zh}再发。",
        f"The limit for this hour is reached. Please send it again {en}.",
    )


def token_budget(*, wait_s: float) -> Notice:
    zh, en = _after(wait_s)
    return Notice(
        "token_budget", f"今天的用量到头了，{zh}再发。", f"Today's usage limit is reached. Please send it again {en}."
    )


# --- the bridge goes away -------------------------------------------------------------------------------------


def closing_running() -> Notice:
    return Notice(
        "closing_running",
        "我这边要关了，这条没做完，等我回来再发一次。",
        "I'm shutting down before this one is finished. Please send it again when I'm back.",
    )


def closing_waiting(count: int) -> Notice:
    return Notice(
        "closing_waiting",
        f"我这边要关一下，排着的 {count} 条都留着，回来就答，不用重发。",
        f"I'm shutting down for now. {_messages(count)} kept and answered when I'm back, no need to resend.",
    )


def closing_both(count: int) -> Notice:
    return Notice(
        "closing_both",
        f"我这边要关了，正在做的这条回头请再发一次，排着的 {count} 条会留着，不用重发。",
        f"I'm shutting down: send the one in progress again later. {_messages(count)} kept and answered when I'm back.",
    )


def logged_out(*, waiting: int) -> Notice:
    if waiting == 0:
        return Notice(
            "logged_out",
            "这个账号要退出了，没做完的不会再回。",
            "This account is signing out; what isn't finished won't be answered.",
        )
    return Notice(
        "logged_out",
        f"这个账号要退出了，没做完的和排着的 {waiting} 条都不会再回。",
        f"This account is signing out; the unfinished and the {_count(waiting, 'waiting message')} won't be answered.",
    )


# --- sending --------------------------------------------------------------------------------------------------


def more_waiting() -> Notice:
    """At most bubbles.LINE_ROOM units with the blank line before it."""
    return Notice("more_waiting", "（还没完，随便回一句，我接着发。）", "(More is waiting: reply anything for it.)")


def file_too_large(name: str) -> Notice:
    return Notice(
        "file_too_large",
        f"文件“{one_line(name)}”太大，发不过来。",
        f"The file “{one_line(name)}” is too large to send here.",
    )


def file_not_sent(name: str) -> Notice:
    """It could not be uploaded."""
    return Notice(
        "file_not_sent",
        f"文件“{one_line(name)}”没发出去。",
        f"The file “{one_line(name)}” could not be sent.",
    )


# --- media ----------------------------------------------------------------------------------------------------


def attachment_unreadable(names: Sequence[str]) -> Notice:
    """names: as the peer's phone called them; empty ones are left out."""
    named = [one_line(name) for name in names if name.strip()]
    if not named:
        return Notice(
            "attachment_unreadable",
            "附件没能打开，麻烦再发一次。",
            "I couldn't open the attachment. Please send it again.",
        )
    return Notice(
        "attachment_unreadable",
        f"这个没能打开：{'、'.join(named)}，麻烦再发一次。",
        f"I couldn't open {', '.join(named)}. Please send it again.",
    )


def voice_without_words() -> Notice:
    return Notice(
        "voice_without_words",
        "这段语音没有转出文字，听不了，打字或转成文字再发吧。",
        "I can't listen to voice messages that come without text. Please type it instead.",
    )


def video_not_understood() -> Notice:
    return Notice(
        "video_not_understood",
        "视频我看不了，发截图或说一下内容吧。",
        "I can't watch videos. A screenshot or a few words would help.",
    )


# --- slash commands -------------------------------------------------------------------------------------------


def new_done() -> Notice:
    return Notice(
        "new_done", "好，从头开始，之前聊的我先放下了。", "Fresh start. The earlier conversation is set aside."
    )


def new_while_running() -> Notice:
    return Notice(
        "new_while_running",
        "这条还在做，先发 /stop 再发 /new。",
        "I'm still working. Send /stop first, then /new.",
    )


def new_owner_only() -> Notice:
    return Notice("new_owner_only", "只有这个账号的主人可以用 /new。", "Only the owner of this account can use /new.")


_HELP = {
    "/new": ("重新开始一段对话", "start a fresh conversation"),
    "/stop": ("停下正在做的", "stop what is running"),
    "/status": ("看看现在的情况", "see how things stand"),
    "/history": ("最近聊了什么，可加条数，如 /history 15", "recent messages; add a number, as in /history 15"),
    "/help": ("这份说明", "this list"),
}


def help_lines(*, snippets: Sequence[str] = ()) -> Notice:
    """snippets: names of the operator's own commands, without the slash."""
    zh = [f"{command}  {words}" for command, (words, _) in _HELP.items()]
    en = [f"{command}  {words}" for command, (_, words) in _HELP.items()]
    if snippets:
        own = " ".join(f"/{one_line(name)}" for name in snippets)
        zh.append(f"快捷：{own}")
        en.append(f"Shortcuts: {own}")
    return Notice("help", "\n".join(zh), "\n".join(en))


@dataclass(frozen=True, slots=True)
class Standing:
    """What /status tells. running_s: None = no turn runs. turns_left: None = no limit. question: "" = none waits.

    starting   the oldest waiting message has its turn as soon as the agent is up
    """

    running_s: float | None
    question: str
    waiting: int
    parked: int
    budget_left: int
    turns_left: int | None
    starting: bool = False


def status_lines(now: Standing) -> Notice:
    zh: list[str] = []
    en: list[str] = []
    if now.running_s is None and now.starting:
        zh.append("正在准备。")
        en.append("Getting ready.")
    elif now.running_s is None and not now.waiting:
        zh.append("现在空着。")
        en.append("Idle.")
    elif now.running_s is not None:
        zh_time, en_time = _lasting(now.running_s)
        zh.append(f"正在做，已经 {zh_time}。")
        en.append(f"Working, {en_time} so far.")
    if now.question:
        zh.append(f"在等你回答：{one_line(now.question)}")
        en.append(f"Waiting for your answer: {one_line(now.question)}")
    if now.waiting:
        zh.append(f"排着 {now.waiting} 条。")
        en.append(f"{_messages(now.waiting)} waiting.")
    if now.parked:
        zh.append(f"还有 {now.parked} 段没发给你。")
        en.append(f"{_count(now.parked, 'part')} not sent to you yet.")
    zh.append(f"在你下次发消息前，我还能发 {now.budget_left} 条。")
    en.append(f"I can send {_count(now.budget_left, 'more message')} before you write again.")
    if now.turns_left is not None:
        zh.append(f"这一小时还能问 {now.turns_left} 次。")
        en.append(f"{_count(now.turns_left, 'turn')} left this hour.")
    return Notice("status", "\n".join(zh), "\n".join(en))


@dataclass(frozen=True, slots=True)
class HistoryLine:
    """flag: "" or why a reply has not arrived: parked, rejected, unconfirmed, pending."""

    from_peer: bool
    text: str
    flag: str = ""


_FLAGS = {
    "parked": ("还没发", "not sent yet"),
    "pending": ("还没发", "not sent yet"),
    "rejected": ("没发成", "not delivered"),
    "unconfirmed": ("可能没送到", "perhaps not delivered"),
}


def history_lines(lines: Sequence[HistoryLine]) -> Notice:
    """Oldest first, one line each, long ones shortened."""
    if not lines:
        return Notice("history", "这段对话还没有内容。", "Nothing has been said in this conversation yet.")
    zh: list[str] = []
    en: list[str] = []
    for line in lines:
        text = one_line(line.text, chars=HISTORY_CHARS)
        flag_zh, flag_en = _FLAGS.get(line.flag, ("", ""))
        zh.append(f"{'你' if line.from_peer else '我'}：{f'（{flag_zh}）' if flag_zh else ''}{text}")
        en.append(f"{'You' if line.from_peer else 'Me'}: {f'({flag_en}) ' if flag_en else ''}{text}")
    return Notice("history", "\n".join(zh), "\n".join(en))


# --- dialogs --------------------------------------------------------------------------------------------------

BODY_CHARS = 1500  # of a question, whole; of a longer one the beginning and the end
BODY_HEAD, BODY_TAIL = 1000, 400
STEP_LINES = 5  # of a plan, in the bubble that asks about it
STEP_CHARS = 80


def question_lines(asked: Question) -> Notice:
    """The bubble that asks. A plan's text goes before it, as a file or as plan_text."""
    plan = asked.purpose is DialogPurpose.PLAN_REVIEW
    zh_head, en_head = _head(asked)
    zh, en = [zh_head], [en_head]
    if plan:
        steps = [one_line(line, chars=STEP_CHARS) for line in asked.body.splitlines() if line.strip()]
        shown = "\n".join(steps[:STEP_LINES]) + ("\n…" if len(steps) > STEP_LINES else "")
        body_zh = body_en = shown
    else:
        body_zh, body_en = _shortened(asked.body)
    zh.append(body_zh)
    en.append(body_en)
    if plan:
        zh.append("现在还在计划模式，什么都没动。")
        en.append("Still in plan mode: nothing has been changed.")
    if asked.kind is DialogKind.EDITOR and asked.prefill and not asked.choices:
        zh.append(f"现在的内容：\n{_lines(asked.prefill)}")
        en.append(f"It now reads:\n{_lines(asked.prefill)}")
    zh_how, en_how = _how(asked)
    zh.append(zh_how)
    en.append(en_how)
    return Notice("question", "\n\n".join(filter(None, zh)), "\n\n".join(filter(None, en)))


def question_again_lines(asked: Question, why: Why) -> Notice:
    """The reply was no answer: why, and what would be one."""
    zh, en = _WHY[why]
    if why is not Why.TYPE_IT:
        zh_how, en_how = _how(asked)
        zh, en = f"{zh}\n\n{zh_how}", f"{en}\n\n{en_how}"
    return Notice("question_again", zh, en)


_WHY = {
    Why.NO_SUCH_NUMBER: ("没有这个数字对应的选项。", "There is no option with that number."),
    Why.NO_SUCH_CHOICE: ("没认出你选的是哪个。", "I couldn't tell which option you mean."),
    Why.NEEDS_NUMBER: (
        "这一步要你明确选一个，请直接回数字。",
        "This one needs a clear choice: please reply with its number.",
    ),
    Why.SEVERAL: ("有几个选项写法一样，请回数字。", "Several options read the same: please reply with a number."),
    Why.YES_OR_NO: ("没看懂是同意还是不同意。", "I couldn't tell whether that is a yes or a no."),
    Why.TYPE_IT: ("好，直接把你的回答打出来。", "Sure, just type your answer."),
}


def plan_text_lines(plan: str) -> Notice:
    """A plan whose file could not be sent."""
    return Notice("plan_text", f"计划全文：\n\n{_lines(plan)}", f"The plan in full:\n\n{_lines(plan)}")


def plan_cut_lines(plan: str, *, chars: int) -> Notice:
    """As plan_text_lines, of a plan that is longer than what can be sent."""
    plan = plan[: graphemes.cut(plan, chars)]
    return Notice(
        "plan_cut",
        f"计划太长，这里只放得下开头：\n\n{_lines(plan)}\n…",
        f"The plan is too long for the chat; this is how it begins:\n\n{_lines(plan)}\n…",
    )


def question_reminder(asked: Question, *, left_s: float) -> Notice:
    zh_time, en_time = _lasting(max(1.0, left_s))
    title = _subject(asked)
    return Notice(
        "question_reminder",
        f"还在等你回答{f'：{title}' if title else '上面的问题'}（还剩 {zh_time}）",
        f"Still waiting for your answer{f': {title}' if title else ' to the question above'} ({en_time} left)",
    )


def question_expired(asked: Question) -> Notice:
    if asked.purpose is DialogPurpose.PLAN_REVIEW:
        return Notice(
            "question_expired",
            "计划一直没等到答复，先不执行。",
            "No answer about the plan came in time, so it is not carried out.",
        )
    return Notice(
        "question_expired",
        "这个问题没等到回答，先按取消处理了。",
        "No answer came in time, so that question counts as cancelled.",
    )


def question_withdrawn() -> Notice:
    return Notice(
        "question_withdrawn",
        "刚才那个问题撤回了，不用回答。",
        "That question was withdrawn, no need to answer it.",
    )


def queued_behind_question() -> Notice:
    return Notice(
        "queued_behind_question",
        "这条先收着，等你用文字回答完上面的问题就处理。",
        "Got it, this comes next. Please answer the question above in words first.",
    )


def _head(asked: Question) -> tuple[str, str]:
    title = one_line(asked.title, chars=200)
    match asked.purpose:
        case DialogPurpose.PLAN_REVIEW:
            return (
                (f"计划好了：{title}", f"The plan is ready: {title}") if title else ("计划好了。", "The plan is ready.")
            )
        case DialogPurpose.PERMISSION:
            if title:
                return f"这一步要你同意：{title}", f"This needs your permission: {title}"
            return "下面这一步要你同意：", "This needs your permission:"
        case DialogPurpose.QUESTION:
            return title, title
    assert_never(asked.purpose)


def _subject(asked: Question) -> str:
    return one_line(asked.title or asked.body)


def _how(asked: Question) -> tuple[str, str]:
    """The choices, and how to answer."""
    if asked.numbered:
        zh, en = [], []
        for number, choice in enumerate(asked.choices, 1):
            zh_label, en_label = _label(choice)
            hint = one_line(choice.hint, chars=120)
            zh.append(f"{number}. {zh_label}{f'（{hint}）' if hint else ''}")
            en.append(f"{number}. {en_label}{f' ({hint})' if hint else ''}")
        if asked.purpose is DialogPurpose.PLAN_REVIEW:
            zh_hint, en_hint = "回数字，或直接说要改什么。", "Reply with a number, or say what to change."
        elif asked.other:
            zh.append(f"{len(asked.choices) + 1}. 其他，直接打字")
            en.append(f"{len(asked.choices) + 1}. Something else: just type it")
            zh_hint = "回数字，或直接打字回答；不想答就回“取消”。"
            en_hint = "Reply with a number or with your own words, or “cancel”."
        elif asked.dangerous:
            zh_hint, en_hint = "请回数字；不想答就回“取消”。", "Please reply with the number, or “cancel”."
        else:
            zh_hint, en_hint = "回数字就行；不想答就回“取消”。", "Reply with a number, or “cancel”."
        return "\n".join([*zh, "", zh_hint]), "\n".join([*en, "", en_hint])
    if asked.kind is DialogKind.CONFIRM:
        yes, no = asked.choices
        if yes.word is None:
            shown = f"{_label(yes)[0]} / {_label(no)[0]}\n\n"
            return f"{shown}回“是”或“否”，不想答就回“取消”。", f"{shown}Reply yes or no, or “cancel”."
        return "回“是”或“否”，不想答就回“取消”。", "Reply yes or no, or “cancel”."
    if asked.kind is DialogKind.EDITOR and asked.prefill:
        return (
            "把新的内容整段发来，会替换上面的；不改就回“取消”。",
            "Send the new text; it replaces all of the above. Or “cancel”.",
        )
    return "直接打字回答；不想答就回“取消”。", "Just type your answer, or “cancel”."


def _label(choice: Choice) -> tuple[str, str]:
    if choice.word is None:
        label = one_line(choice.label, chars=200) or "…"
        return label, label
    chinese, english = WORDS[choice.word]
    rule = one_line(choice.rule, chars=200)
    return (f"{chinese[0]}：{rule}", f"{english[0]}: {rule}") if rule else (chinese[0], english[0])


def _shortened(body: str) -> tuple[str, str]:
    """What is left out is said, and never the end: that is where a command hides what it really does."""
    body = _lines(body)
    if len(body) <= BODY_CHARS:
        return body, body
    head = body[: graphemes.cut(body, BODY_HEAD)]
    tail = body[len(body) - BODY_TAIL :]
    left_out = len(body) - len(head) - len(tail)
    return (
        f"{head}\n…（中间略去 {left_out} 字）…\n{tail}",
        f"{head}\n… ({_count(left_out, 'character')} left out) …\n{tail}",
    )


def _lines(text: str) -> str:
    """Words from outside with their line breaks, without what cannot be seen."""
    return "".join(c if c.isprintable() or c in "\n\t\u200d" else " " for c in text).strip()


# --- words ----------------------------------------------------------------------------------------------------


def one_line(text: str, *, chars: int = NAME_CHARS) -> str:
    """Words from outside as part of a line of ours: no line breaks, no control characters, not too long."""
    flat = " ".join("".join(c if c.isprintable() or c == "\u200d" else " " for c in text[: 8 * chars]).split())
    return flat if len(flat) <= chars else flat[: graphemes.cut(flat, chars - 1)] + "…"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _messages(number: int) -> str:
    return "1 message is" if number == 1 else f"{number} messages are"


def _after(seconds: float) -> tuple[str, str]:
    minutes = max(1, -int(-seconds // 60))
    if minutes < 90:
        return f"{minutes} 分钟后", f"in {_count(minutes, 'minute')}"
    hours = -(-minutes // 60)
    return f"{hours} 小时后", f"in {_count(hours, 'hour')}"


def _lasting(seconds: float) -> tuple[str, str]:
    if seconds < 60:
        return f"{int(seconds)} 秒", _count(int(seconds), "second")
    minutes = int(seconds // 60)
    return f"{minutes} 分钟", _count(minutes, "minute")
