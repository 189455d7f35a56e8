"""Pieces → bubbles: what leaves early, what is held, and where a text is cut. Knows no budget and no clock.

In come the pieces of one turn, its tool calls and the time; out come texts that the channel takes whole. Several
bubbles made of one part are numbered inside the limit; a part sent in a stream is not, nor is one whose rest will be
parked: there a line says that more is waiting, and every bubble of a cut text leaves room for it.
delivery.py asks for bubbles as the budget allows. No Markdown is parsed here.
"""

import json
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from itertools import chain

from protocol.to_supervisor import Boundary
from supervisor.core import graphemes
from supervisor.core.policy import InterimText

SILENCE_S = 2.0
GROWTH_UNITS = 400  # the n-th bubble of a turn leaves early once it holds 400·(n−1)
SHORT_UNITS = 200  # text this short right before a tool call joins the text behind it
SLICE_UNITS = 64 * 1024  # held text is cut by then, whatever stands behind it
LINE_ROOM = 48  # for "more is waiting" and the blank line before it
LINE_BYTES = 3 * LINE_ROOM

Spans = Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Size:
    """What one bubble may hold: UTF-16 units, and bytes of its text as written into JSON (UTF-8, escapes counted)."""

    units: int
    json_bytes: int

    def __post_init__(self) -> None:
        if self.units < 2 or self.json_bytes < 6:
            raise ValueError(f"a bubble of {self.units} units and {self.json_bytes} bytes cannot hold every code point")

    def less(self, units: int, json_bytes: int) -> "Size":
        return Size(max(2, self.units - units), max(6, self.json_bytes - json_bytes))

    @property
    def with_room(self) -> "Size":
        """Room left for the line that says more is waiting; bubbles too small for it do without."""
        roomy = self.units >= 8 * LINE_ROOM and self.json_bytes >= 8 * LINE_BYTES
        return self.less(LINE_ROOM, LINE_BYTES) if roomy else self


def utf16_units(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2


def json_bytes(text: str) -> int:
    """Of the text inside a JSON string, escapes included."""
    return len(json.dumps(text, ensure_ascii=False).encode("utf-8", "surrogatepass")) - 2


def fits(text: str, size: Size) -> bool:
    """The line breaks at a bubble's ends are not sent, so they are not counted."""
    text = without_breaks(text)
    return len(text) <= size.units and utf16_units(text) <= size.units and json_bytes(text) <= size.json_bytes


def without_breaks(text: str) -> str:
    return text.strip("\r\n")


def mended(text: str) -> str:
    """Halves of a surrogate pair are put together; one without its other half becomes U+FFFD."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


_SURROGATE = re.compile("[\ud800-\udfff]")


def _is_broken(text: str) -> bool:
    return _SURROGATE.search(text) is not None


# --- cutting --------------------------------------------------------------------------------------------------

_BREAKS = re.compile(r"\r?\n(?:[ \t]*\r?\n)*")
_SENTENCES = re.compile(r"""[。！？；…]+[”’」』）】》]*|[.!?]+["')\]]*(?=\s)""")
_BLANKS = re.compile(r"[ \t\u3000]+")

# How far into a bubble a cut of each kind has to lie: a better kind may leave more of the bubble empty.
_PARAGRAPH_FROM, _LINE_FROM, _SENTENCE_FROM, _BLANK_FROM = 0.5, 0.7, 0.7, 0.5


def split(text: str, *, size: Size, keep: Spans = ()) -> tuple[str, ...]:
    """Cut a text into bubbles, none numbered.

    keep     spans (start, end) in code points, rising, that are cut only where they are longer than a bubble
    returns  bubbles in reading order, none blank; joined they are `text`, but for line breaks at their ends (and for
             a stretch of nothing but blanks that would fill a bubble: nobody could see it)
    """
    if _is_broken(text):
        text, keep = mended(text), ()
    return tuple(text[start:end] for start, end in _cuts(text, keep, size))


def numbered(text: str, *, size: Size, keep: Spans = ()) -> tuple[str, ...]:
    """Cut a text into bubbles that say which of how many they are, inside the limit; one alone is not numbered."""
    if fits(text, size):
        return split(text, size=size, keep=keep)
    digits = len(str(len(text) // size.units))
    while 4 * (label := 2 * digits + 4) <= size.units:  # "[", "/", "]", a blank
        bubbles = split(text, size=size.less(label, label).with_room, keep=keep)
        if len(bubbles) < 10**digits:
            return tuple(f"[{n}/{len(bubbles)}] {bubble}" for n, bubble in enumerate(bubbles, 1))
        digits = len(str(len(bubbles)))
    return split(text, size=size.with_room, keep=keep)


def _cuts(text: str, keep: Spans, size: Size) -> Iterator[tuple[int, int]]:
    """Start and end of each bubble."""
    at, last = _trim(text, 0, len(text))
    while at < last:
        head = text[at : min(last, at + size.units + 1)]
        end = at + cut(head, _within(keep, at, at + len(head)), size, whole=at + len(head) == last)
        start, stop = _trim(text, at, end)
        if text[start:stop].strip():
            yield start, stop
        at, _ = _trim(text, end, last)


def _trim(text: str, start: int, end: int) -> tuple[int, int]:
    """Without the line breaks at the ends."""
    while start < end and text[start] in "\r\n":
        start += 1
    while end > start and text[end - 1] in "\r\n":
        end -= 1
    return start, end


def _within(keep: Spans, at: int, until: int) -> Spans:
    """The spans that reach into this stretch, as seen from `at` on."""
    first = bisect_right(keep, at, key=lambda span: span[1])
    last = bisect_left(keep, until, lo=first, key=lambda span: span[0])
    return [(max(0, start - at), end - at) for start, end in keep[first:last]]


def cut(head: str, keep: Spans, size: Size, *, whole: bool) -> int:
    """The best place to end the first bubble of a text, as an index above 0.

    head   the text's beginning, one code point longer than a bubble can be (what follows a place decides about it)
    whole  head is all there is
    """
    reach = _reach(head, size)
    if whole and reach == len(head):
        return reach
    # A place inside a span counts only where the span itself is longer than a bubble.
    kept = [(start, end) for start, end in keep if end - start <= reach and fits(head[start:end], size)]
    ends = graphemes.Boundaries(head[: reach + 1])

    def free(place: int) -> bool:
        return place in ends and not any(start < place < stop for start, stop in kept)

    paragraphs: list[int] = []
    lines: list[int] = []
    for run in _BREAKS.finditer(head):
        (paragraphs if run.group().count("\n") > 1 else lines).append(run.start())
    for places, share in (
        (paragraphs, _PARAGRAPH_FROM),
        (lines, _LINE_FROM),
        ((m.end() for m in _SENTENCES.finditer(head)), _SENTENCE_FROM),
        ((m.end() for m in _BLANKS.finditer(head)), _BLANK_FROM),
    ):
        likely = [place for place in places if share * reach <= place <= reach]
        if (good := next(filter(free, reversed(likely)), 0)) > 0:
            return good
    downward = range(reach, 0, -1)
    last_resorts = chain(filter(free, downward), filter(ends.__contains__, downward))
    return next(last_resorts, reach)  # one cluster longer than a bubble is cut between code points


def _reach(head: str, size: Size) -> int:
    """How many code points from the start fit."""
    low, high = 0, min(len(head), size.units)
    middle = high  # most often all of it does
    while low < high:
        if utf16_units(head[:middle]) <= size.units and json_bytes(head[:middle]) <= size.json_bytes:
            low = middle
        else:
            high = middle - 1
        middle = (low + high + 1) // 2
    return low


# --- composing ------------------------------------------------------------------------------------------------


class _Point(Enum):
    """Why held text may leave now."""

    PARAGRAPH = auto()
    TOOL = auto()
    SILENCE = auto()
    SLICE = auto()


_JOINT = {Boundary.LINE: "\n", Boundary.PARAGRAPH: "\n\n", Boundary.TOOL: "\n\n"}


class Composer:
    """Holds one turn's text until it may leave. `now` is monotonic seconds."""

    def __init__(self, size: Size, *, max_answer_chars: int, interim: InterimText) -> None:
        self.size = size
        self.cut_off = False  # the answer was longer than max_answer_chars
        self._left = max_answer_chars
        self._interim = interim
        self._fresh: list[str] = []  # of _text, not yet joined to it: pieces may be many and small
        self._text = ""
        self._length = 0  # of _text and _fresh, in code points
        self._units = 0
        self._keep: list[tuple[int, int]] = []
        self._behind = Boundary.NONE
        self._since_tool = 0  # units of the turn since its last tool call
        self._bubbles = 0
        self._visible = False
        self._point: _Point | None = None
        self._heard = 0.0
        self._joins_next = False  # short text right before a tool call

    @property
    def has_text(self) -> bool:
        """Is there anything of this turn that a person can see, sent or held?"""
        return self._bubbles > 0 or self._visible

    def piece(self, text: str, boundary: Boundary, keep: Spans, now: float) -> None:
        if self.cut_off:
            return
        if _is_broken(text):
            text, keep = mended(text), ()
        text = self._capped(text)
        if text:
            self._append(text, keep)
            self._point, self._joins_next = None, False
        self._heard = now
        self._behind = boundary
        if boundary is Boundary.PARAGRAPH:
            self._point = _Point.PARAGRAPH
        elif boundary is Boundary.TOOL:
            self.tool_started(now)
        elif self._units > SLICE_UNITS:
            self._point = _Point.SLICE

    def tool_started(self, now: float) -> None:
        self._heard = now
        self._behind = Boundary.TOOL
        if self._since_tool < SHORT_UNITS and self._interim is InterimText.DROP:
            self._drop_last(self._since_tool)
        self._since_tool = 0
        if self._units < SHORT_UNITS:
            self._point, self._joins_next = None, True
        elif self._bubbles == 0 or self._units >= self._threshold():
            self._point = _Point.TOOL

    def wake_at(self) -> float | None:
        """When silence lets the held text leave; None when it would not."""
        if self._point is not None or self._joins_next or not self._visible or self._units < self._threshold():
            return None
        return self._heard + SILENCE_S

    def leaving(self, room: int, now: float) -> tuple[str, ...]:
        """The bubbles that may go before the turn ends, at most `room`; the rest stays held."""
        at = self.wake_at()
        if at is not None and now >= at:
            self._point = _Point.SILENCE
        if room <= 0 or self._point is None:
            return ()
        out: list[str] = []
        while len(out) < room and (bubbles := self._next(room - len(out))):
            out += bubbles
        return tuple(out)

    def before_question(self, room: int) -> tuple[str, ...]:
        """A question is about to be asked: what led to it goes first, as far as `room` allows."""
        return self._take_whole(room) if room > 0 and len(self._plain()) <= room else ()

    def rest(self, room: int) -> tuple[str, ...]:
        """The turn has ended: all that is held. `room` bubbles can go now, the others will be parked."""
        return self._take_whole(room)

    # -- how held text becomes bubbles

    def _take_whole(self, room: int) -> tuple[str, ...]:
        text = self._joined()
        bubbles = numbered(text, size=self.size, keep=self._keep)
        if len(bubbles) > room:
            bubbles = self._plain()
        self._remove(len(text), len(bubbles))
        return bubbles

    def _plain(self) -> tuple[str, ...]:
        return split(self._joined(), size=self.size.with_room, keep=self._keep)

    def _next(self, room: int) -> tuple[str, ...]:
        text = self._joined()
        limit = self._complete_to(text)
        if not text[:limit].strip():
            return ()
        if fits(text[:limit], self.size):
            if utf16_units(text[:limit]) < self._threshold() or self._point is _Point.SLICE:
                return ()
            return self._take(limit, (without_breaks(text[:limit]),))
        fitting, longer = self._paragraph_ends(text, limit)
        if fitting and utf16_units(text[:fitting]) >= self._threshold():
            return self._take(fitting, (without_breaks(text[:fitting]),))
        if not fitting and longer:
            bubbles = numbered(text[:longer], size=self.size, keep=self._keep)
            if len(bubbles) <= room:
                return self._take(longer, bubbles)
        start, stop = next(_cuts(text[:limit], self._keep, self.size.with_room))
        return self._take(stop, (text[start:stop],))

    def _paragraph_ends(self, text: str, limit: int) -> tuple[int, int]:
        """The last end of a paragraph that one bubble reaches, and the first one that it does not; 0 for none."""
        fitting = 0
        for run in _BREAKS.finditer(text, 0, limit):
            if run.group().count("\n") > 1 and text[: run.start()].strip():
                if not fits(text[: run.start()], self.size):
                    return fitting, run.start()
                fitting = run.start()
        return fitting, limit if self._point in (_Point.PARAGRAPH, _Point.TOOL) else 0

    def _complete_to(self, text: str) -> int:
        """Silence in the middle of a code line or a URL lets only what stands before it go."""
        if self._point is _Point.SILENCE and self._behind is Boundary.NONE and self._keep:
            start, end = self._keep[-1]
            if end == len(text) and start > 0:
                return start
        return len(text)

    def _threshold(self) -> int:
        return min(GROWTH_UNITS * self._bubbles, self.size.units)

    def _take(self, end: int, bubbles: tuple[str, ...]) -> tuple[str, ...]:
        self._remove(end, len(bubbles))
        return bubbles

    # -- the held text

    def _capped(self, text: str) -> str:
        units = utf16_units(text)
        if units > self._left:
            self.cut_off = True
            room = _reach(text[: self._left + 1], Size(max(2, self._left), 1 << 40)) if self._left >= 2 else 0
            text = text[: graphemes.cut(text, room)]
            self._left = 0
        else:
            self._left -= units
        return text

    def _append(self, text: str, keep: Spans) -> None:
        joint = _JOINT.get(self._behind, "")
        if joint and self._length and not self._last().endswith("\n") and not text.startswith("\n"):
            self._fresh.append(joint)
            self._length += len(joint)
            self._units += len(joint)
        for start, end in sorted(keep):
            # A worker's word: spans that leave the text or overlap are put right, not believed.
            start, end = max(0, start) + self._length, min(end, len(text)) + self._length
            if self._keep:
                start = max(start, self._keep[-1][1])
            if start < end:
                self._keep.append((start, end))
        self._fresh.append(text)
        self._length += len(text)
        units = utf16_units(text)
        self._units += units
        self._since_tool += units
        self._visible = self._visible or bool(text.strip())

    def _last(self) -> str:
        return self._fresh[-1] if self._fresh else self._text

    def _joined(self) -> str:
        if self._fresh:
            self._text = "".join((self._text, *self._fresh))
            self._fresh.clear()
        return self._text

    def _remove(self, end: int, bubbles: int) -> None:
        text = self._joined()
        while end < len(text) and text[end] in "\r\n":
            end += 1
        self._keep = [(max(0, start - end), stop - end) for start, stop in self._keep if stop > end]
        self._set(text[end:])
        self._bubbles += bubbles

    def _drop_last(self, units: int) -> None:
        """Forget the last `units` of the turn, as far as they are still held."""
        text = self._joined()
        end = len(text)
        while end > 0 and units > 0:
            end -= 1
            units -= 2 if text[end] > "\uffff" else 1
        self._keep = [(start, min(stop, end)) for start, stop in self._keep if start < end]
        self._set(text[:end])

    def _set(self, text: str) -> None:
        self._text = text
        self._length, self._units = len(text), utf16_units(text)
        self._visible = bool(text.strip())
