"""Running text inside a line → the same text without its marks. Pure.

In comes a line (or a few, where bold spans them), out come plain text and the spans of its URLs. Emphasis counts at the
borders of words only, so that identifiers and arithmetic stay whole; but Chinese, Japanese, Korean and Thai have no
such borders, so that next to them and their punctuation a mark counts wherever it stands. One pass, linear time.
core/reply.py reads the lines around it.
"""

import re
from dataclasses import dataclass
from html import unescape

_ESCAPABLE = r"[`*_{}\[\]<>#+\-.!|~]"
_TOKEN = re.compile(
    rf"""
      \\(?P<escaped>{_ESCAPABLE})
    | (?P<ticks>`+)
    | (?P<stars>\*+|_+|~+)
    | (?P<bracket>!?\[)
    | (?P<close>\])
    | <(?P<address>https?://[^\s<>]+|mailto:[^\s<>]+|[^\s<>@:]+@[^\s<>@]+\.[^\s<>@]+)>
    | (?P<newline><[bB][rR][ \t]*/?>)
    | (?P<tag></?(?:b|i|u|s|em|strong|del|ins|sub|sup|kbd|mark|small|details|summary)>)
    | (?P<entity>&(?:\#[0-9]{{1,7}}|\#[xX][0-9a-fA-F]{{1,6}}|[A-Za-z][A-Za-z0-9]{{1,31}});)
    | (?P<url>https?://[^\s<>"`\[\]\u2018-\u201f\u3000-\u303f\u3400-\u9fff\uff00-\uffef]+)
    """,
    re.VERBOSE,
)
_TICKS = re.compile("`+")
_LETTER = re.compile(r"[^\W\d_]")
_DESTINATION = re.compile(
    r"""
    \([ \t]*
    (?: <(?P<angle>[^<>\n]*)>
      | (?P<plain>(?:[^\s()\\]|\\.|\((?:[^\s()\\]|\\.|\([^\s()]*\))*\))*) )
    (?:[ \t]+(?:"[^"\n]*"|'[^'\n]*'|\([^()\n]*\)))?
    [ \t]*\)
    """,
    re.VERBOSE,
)
_REFERENCE = re.compile(r"\[([^\[\]\n]{1,100})\]")
_LOOKS_LIKE_ADDRESS = re.compile(r"[/.#:]")
_IDENTIFIER = re.compile(r"[a-z0-9]+(?:_[a-z0-9]+)*")
_TRAILING = "*_~.,;:!?'"

_OPENS_AFTER = frozenset("([{\"'“‘«—–-,;:!?*_~`>|、")  # what may stand before a mark that opens
_CLOSES_BEFORE = frozenset(")]}\"'”’».,;:!?…—–-*_~`<|")  # what may stand behind one that closes


def _wordy(char: str) -> bool:
    """Part of an identifier or of a word in a script that writes spaces."""
    return char == "_" or (char.isalnum() and not _borderless(char))


def _borderless(char: str) -> bool:
    """Of a script that writes no spaces, or its punctuation: emphasis may touch it."""
    return (char >= "\u0e00" and char.isalnum() and not "\u1e00" <= char <= "\u1fff") or (
        "\u2010" <= char <= "\u205e" or "\u3000" <= char <= "\u303f" or "\uff00" <= char <= "\uffef"
    )


@dataclass(slots=True)
class _Mark:
    """A run of emphasis marks that may open."""

    token: int
    start: int  # of the text behind it
    length: int
    letters: int  # how many stretches with letters came before it
    cjk: bool


def flatten(text: str) -> tuple[str, tuple[tuple[int, int], ...], bool]:
    """Running text without its marks.

    returns  the plain text, the spans of its URLs, and whether bold or struck text is still open at its end
    """
    if not _TOKEN.search(text):
        return text, (), False
    return _Flattening(text).run()


class _Flattening:
    """One pass over a line. Tokens are written as found; marks that turn out to be emphasis are emptied later."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._out: list[str] = []
        self._urls: list[int] = []  # indexes into _out
        self._marks: dict[tuple[str, int], list[_Mark]] = {}
        self._brackets: list[tuple[int, int]] = []  # token, position of [
        self._letters = 0
        self._ticks: dict[int, list[int]] | None = None
        self._last_paren = text.rfind(")")

    def run(self) -> tuple[str, tuple[tuple[int, int], ...], bool]:
        text = self._text
        position = 0
        while found := _TOKEN.search(text, position):
            if found.start() > position:
                self._plain(text[position : found.start()])
            position = self._token(found)
        if position < len(text):
            self._plain(text[position:])
        still_open = any(stack for (char, length), stack in self._marks.items() if length >= 2 and char != "_")
        return "".join(self._out), self._spans(), still_open

    def _spans(self) -> tuple[tuple[int, int], ...]:
        if not self._urls:
            return ()
        urls = set(self._urls)
        spans = []
        position = 0
        for index, token in enumerate(self._out):
            if index in urls and token:
                spans.append((position, position + len(token)))
            position += len(token)
        return tuple(spans)

    def _plain(self, text: str) -> None:
        if _LETTER.search(text):
            self._letters += 1
        self._out.append(text)

    def _url(self, url: str) -> None:
        self._letters += 1
        self._urls.append(len(self._out))
        self._out.append(url)

    def _token(self, found: re.Match[str]) -> int:
        """Write one token and return where to go on."""
        kind = found.lastgroup
        value = found[kind] if kind else ""
        end = found.end()
        match kind:
            case "ticks":
                return self._code(found.start(), end)
            case "stars":
                self._emphasis(found.start(), end)
            case "bracket":
                self._brackets.append((len(self._out), found.start()))
                self._out.append(value)
            case "close":
                return self._link(end)
            case "url":
                url = value.rstrip(_TRAILING)
                while url.endswith(")") and url.count(")") > url.count("("):
                    url = url[:-1].rstrip(_TRAILING)
                self._url(url)
                return found.start() + len(url)
            case "address":
                self._url(value.removeprefix("mailto:"))
            case "newline":
                self._out.append("\n")
            case "tag":
                pass
            case "entity":
                self._plain(unescape(value).replace("\xa0", " ").replace("\0", ""))
            case _:
                self._plain(value)
        return end

    def _code(self, start: int, end: int) -> int:
        if self._ticks is None:
            self._ticks = {}
            for run in _TICKS.finditer(self._text):
                self._ticks.setdefault(run.end() - run.start(), []).append(run.start())
            for starts in self._ticks.values():
                starts.reverse()  # popped from the end as the scan moves on
        length = end - start
        starts = self._ticks.get(length, [])
        while starts and starts[-1] < end:
            starts.pop()
        if not starts:
            self._plain(self._text[start:end])
            return end
        close = starts.pop()
        code = self._text[end:close]
        if len(code) > 2 and code[0] == code[-1] == " " and not code.isspace():
            code = code[1:-1]
        self._plain(code)
        return close + length

    def _link(self, end: int) -> int:
        """At a closing bracket: a link if an address follows."""
        text = self._text
        if not self._brackets:
            self._plain("]")
            return end
        token, start = self._brackets.pop()
        before = text[start - 1] if start else ""
        subscript = bool(before) and (_wordy(before) or before in ")]") and text[start] == "["
        if end < len(text) and text[end] == "(" and end < self._last_paren:
            found = _DESTINATION.match(text, end)
            if found:
                address = found["angle"] if found["angle"] is not None else found["plain"]
                if address and not (subscript and not _LOOKS_LIKE_ADDRESS.search(address)):
                    self._write_link(token, address)
                    return found.end()
        if not subscript and end < len(text) and text[end] == "[":
            reference = _REFERENCE.match(text, end)
            if reference and any(_LETTER.search(part) for part in self._out[token + 1 :]):
                self._out[token] = ""
                self._plain(f" [{reference[1]}]")
                return reference.end()
        self._plain("]")
        return end

    def _write_link(self, token: int, address: str) -> None:
        address = _unescaped(address)
        label = "".join(self._out[token + 1 :]).strip()
        same = label in (address, address.removeprefix("mailto:"), re.sub("^https?://", "", address).rstrip("/"))
        if not label or same:
            # Not deleted but emptied: marks before this label are known by their index.
            for index in range(token, len(self._out)):
                self._out[index] = ""
            self._url(address.removeprefix("mailto:"))
            return
        self._out[token] = ""
        self._out.append(" (")
        self._url(address)
        self._out.append(")")

    def _emphasis(self, start: int, end: int) -> None:
        text = self._text
        char, length = text[start], end - start
        before = text[start - 1] if start else ""
        behind = text[end] if end < len(text) else ""
        token = len(self._out)
        self._out.append(text[start:end])
        if length > 3 or (char == "~" and length != 2):
            return
        left = length
        if before and not before.isspace():
            while left and (mark := self._opener(char, left, start, before, behind)):
                left -= self._close(mark, char, left)
                self._out[token] = char * left
        if left == length and self._may_open(char, length, before, behind):
            mark = _Mark(token, end, length, self._letters, bool(behind) and _borderless(behind))
            mark.cjk = mark.cjk or (bool(before) and _borderless(before))
            self._marks.setdefault((char, length), []).append(mark)

    def _may_open(self, char: str, length: int, before: str, behind: str) -> bool:
        if not behind or behind.isspace():
            return False
        if char == "~":
            return True
        if length > 1 and char == "*":
            return not before or not _wordy(before) or _borderless(behind)
        if before and not before.isspace() and before not in _OPENS_AFTER and not _borderless(before):
            return length == 1 and char == "*" and _borderless(behind) and not before.isspace()
        return behind.isalnum() or _borderless(behind) or behind in "\"'“‘([{*_~`!<&\\$"

    def _opener(self, char: str, left: int, at: int, before: str, behind: str) -> _Mark | None:
        """The nearest mark that this one closes."""
        candidates = [
            stack[-1]
            for length in ((left,) if left == 3 else (left, 3)) + ((1, 2) if left == 3 else ())
            if (stack := self._marks.get((char, length)))
        ]
        if not candidates:
            return None
        mark = max(candidates, key=lambda candidate: candidate.start)
        if mark.start == at:
            return None  # nothing in between
        if not self._may_close(mark, char, before, behind):
            return None
        if char == "_" and mark.length <= 2 and at - mark.start <= 64:
            name = _IDENTIFIER.fullmatch(self._text, mark.start, at)
            if name and (("_" in name[0]) if mark.length == 1 else len(name[0]) > 1):
                self._marks[char, mark.length].pop()  # `__init__`, `_private_name_`: a later mark closes neither
                return None
        if char == "*" and mark.length == 1 and mark.letters == self._letters:
            self._marks[char, 1].pop()  # 3 *4* 5: arithmetic, and the first star must not wait for a later one
            return None
        return mark

    def _may_close(self, mark: _Mark, char: str, before: str, behind: str) -> bool:
        if before in "([{,/=" and mark.length == 1:
            return False
        if not behind or behind.isspace() or char == "~":
            return True
        touches = mark.cjk or _borderless(before) or _borderless(behind)
        if touches and char == "*":
            return True
        if char == "*" and mark.length > 1:
            return not _wordy(behind)
        return behind in _CLOSES_BEFORE or _borderless(behind)

    def _close(self, mark: _Mark, char: str, left: int) -> int:
        """Empty the opener, or what a shorter run closes of it. Returns how many marks were used."""
        used = min(mark.length, left)
        self._marks[char, mark.length].pop()
        for stack in self._marks.values():
            while stack and stack[-1].token > mark.token:
                stack.pop()  # it would cross this pair
        rest = mark.length - used
        self._out[mark.token] = char * rest
        if rest:
            mark.length = rest
            self._marks.setdefault((char, rest), []).append(mark)
        return used


def _unescaped(address: str) -> str:
    if "\\" in address:
        address = re.sub(r"\\([()<>_*\[\]~`])", r"\1", address)
    return unescape(address) if "&amp;" in address else address
