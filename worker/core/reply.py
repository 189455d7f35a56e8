"""Streamed agent text → pieces of plain chat text. Pure.

Agents write Markdown, phones show plain text. In come deltas as the agent streams them; out come Pieces of at most
PIECE_BYTES, each with the boundary behind it and the spans (code lines, URLs) that delivery should not cut. Marks go,
words stay: fences, headings, emphasis, quotes, rules and link syntax lose their marks; code keeps its body byte for
byte; a link keeps label and address; lists and tables stay readable.

Why not a Markdown library: it needs the whole text, while bubbles leave as soon as a line is known; it recognises
emphasis by CommonMark's rules, which fail next to full-width punctuation and eat stars in arithmetic; and it would
live in every worker. This is one pass over the lines here and one over the characters of each in
core/inline.py; at most one line (a few, where bold is still open) is held back. The joined output depends on the input alone, never on how it was cut into deltas.
"""

import re
from dataclasses import dataclass

from protocol.to_supervisor import PIECE_BYTES, Boundary
from worker.core.inline import flatten

LINE_CHARS = 4000  # a longer line is passed on in stretches: 4 bytes a character stay within one piece
HELD_LINES = 8  # a paragraph whose bold is still open waits this long for its end ...
HELD_CHARS = 2000  # ... or this much text


@dataclass(frozen=True, slots=True)
class Piece:
    """keep: spans (start, end) in code points of text, in order."""

    text: str
    boundary: Boundary
    keep: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class _Fence:
    mark: str  # ` or ~
    length: int
    quotes: int  # depth of the block quote that it stands in


_FENCE = re.compile(r"[ \t]*(?:(`{3,})[^`]*|(~{3,}).*)$", re.DOTALL)
_FENCE_END = re.compile(r"[ \t]*(`{3,}|~{3,})[ \t]*$")
_QUOTE = re.compile(r" {0,3}> ?")
_HEADING = re.compile(r" {0,3}#{1,6}(?:[ \t]+(.*?))?(?:[ \t]+#+)?[ \t]*$", re.DOTALL)
_RULE = re.compile(r" {0,3}([-*_])[ \t]*(?:\1[ \t]*){2,}$")
_UNDERLINE = re.compile(r" {0,3}={2,}[ \t]*$")
_ITEM = re.compile(r"([ \t]*)([-*]|\d{1,9}[.)])([ \t]+)(?=\S)")
_TASK = re.compile(r"\[([ xX])\][ \t]+")
_DELIMITER_ROW = re.compile(r"[ \t]*\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$")
_CELL_BORDER = re.compile(r"(?<!\\)\|")
_INDENTED = re.compile(r"(?: {4}|\t)")
_SURROGATE = re.compile("[\ud800-\udfff]")


class Reply:
    """The words of one turn on their way to the peer."""

    def __init__(self) -> None:
        self._carry = ""  # a high surrogate whose other half may be in the next delta
        self._line: list[str] = []  # the unfinished line
        self._line_chars = 0
        self._mid_line = False  # the start of this line has already been passed on
        self._fence: _Fence | None = None
        self._in_list = False
        self._in_table = False
        self._row: str | None = None  # a line that is a table's head if a delimiter row follows
        self._held: list[str] = []  # lines of a paragraph whose bold is still open
        self._held_prefix = ""
        self._after_text = False  # the last line was a paragraph's: what follows may underline it
        self._after_indented = False
        self._at_break = True  # nothing yet, or a blank line, stands before what comes
        self._owed = ""  # line breaks due before the next text
        self._since_pause = False  # text has been passed on since the last pause
        self._pieces = _Pieces()

    def write(self, text: str) -> tuple[Piece, ...]:
        """What this delta completes."""
        text = self._clean(text)
        start = 0
        while (end := text.find("\n", start)) >= 0:
            self._grow(text[start:end])
            self._end_line()
            start = end + 1
        self._grow(text[start:])
        return self._pieces.take()

    def pause(self, boundary: Boundary) -> tuple[Piece, ...]:
        """The agent stops writing for now: TOOL, it starts a tool; PARAGRAPH, what follows is another message.

        The last piece may be empty: then it only tells the boundary behind text already passed on.
        """
        in_code = self._fence is not None and boundary is Boundary.TOOL
        unfinished = self._flush()
        if in_code:
            self._mid_line = self._mid_line or unfinished  # a tool that starts inside a code line does not break it
        elif boundary is Boundary.TOOL:
            self._owed = self._owed or ("\n" if unfinished else "")
        else:
            self._fence = None
            self._in_list = self._in_table = False
            if self._since_pause and not self._at_break:
                self._owed = "\n\n" if unfinished or self._owed else "\n"
        pieces = self._pieces.take(boundary, even_empty=self._since_pause)
        self._since_pause = False
        return pieces

    def finish(self) -> tuple[Piece, ...]:
        """The turn is over: all that was held back."""
        if self._carry:
            self._carry = ""
            self._grow("\ufffd")
        self._flush()
        return self._pieces.take(Boundary.END)

    # --- lines ------------------------------------------------------------------------------------------------

    def _clean(self, text: str) -> str:
        """Pairs of surrogates become the character they mean, lone halves U+FFFD, NUL nothing."""
        text = self._carry + text
        self._carry = ""
        if text and "\ud800" <= text[-1] <= "\udbff":
            self._carry = text[-1]
            text = text[:-1]
        if _SURROGATE.search(text):
            text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        return text.replace("\0", "") if "\0" in text else text

    def _grow(self, text: str) -> None:
        if not text:
            return
        self._line.append(text)
        self._line_chars += len(text)
        if self._line_chars <= LINE_CHARS:
            return
        line = "".join(self._line)
        start = 0
        while len(line) - start > LINE_CHARS:
            start += self._spill(line[start : start + LINE_CHARS])
        self._line = [line[start:]]
        self._line_chars = len(line) - start

    def _spill(self, text: str) -> int:
        """Pass on the start of a line that is too long to wait for. Returns how much of text went."""
        cut = len(text)
        if self._fence is None:
            space = text.rfind(" ", LINE_CHARS // 2)
            cut = space + 1 if space > 0 else len(text)
        if self._mid_line:
            self._pass_stretch(text[:cut])
        else:
            self._read_line(text[:cut])
            self._settle()
            self._pieces.drop_line_break()
        self._mid_line = True
        return cut

    def _pass_stretch(self, text: str) -> None:
        if self._fence is None:
            plain, urls, _ = flatten(text)
            self._put(plain, Boundary.SENTENCE, urls)
        else:
            self._put(text, Boundary.NONE)

    def _end_line(self) -> None:
        line = "".join(self._line)
        self._line.clear()
        self._line_chars = 0
        line = line.removesuffix("\r")
        if self._mid_line:
            self._mid_line = False
            if line:
                self._pass_stretch(line)
            self._put("\n", Boundary.LINE)
        else:
            self._read_line(line)

    def _flush(self) -> bool:
        """Pass on everything held back. True: the line it ended with had no line break yet."""
        unfinished = bool(self._line) or self._mid_line
        if self._line:
            line = "".join(self._line)
            self._line.clear()
            self._line_chars = 0
            if self._mid_line:
                self._pass_stretch(line)
            else:
                self._read_line(line)
        waiting = self._row is not None or bool(self._held)
        self._settle()
        if unfinished and not self._mid_line or waiting:
            unfinished = self._pieces.drop_line_break()
        if not self._fence:
            self._mid_line = False
        return unfinished

    def _read_line(self, line: str) -> None:
        """One line as a block structure sees it."""
        depth = self._fence.quotes if self._fence else 20
        rest, quotes = _without_quotes(line, depth)
        if self._fence is not None:
            if quotes == self._fence.quotes:
                self._read_code(rest, self._fence)
                return
            self._fence = None  # the quote that held the fence is over
            rest, quotes = _without_quotes(line, 20)
        after_text, self._after_text = self._after_text, False
        after_indented, self._after_indented = self._after_indented, False
        if not rest or rest.isspace():
            self._in_table = False
            self._settle()
            self._break()
            self._after_indented = after_indented
            return
        if _INDENTED.match(rest) and not self._in_list and (after_indented or (self._at_break and not self._pending())):
            self._put_code(rest)
            self._after_indented = True
            return
        if self._open_fence(rest, quotes):
            return
        if self._read_table(rest):
            return
        if _RULE.match(rest):
            self._settle()
            self._break()
            return
        if after_text and _UNDERLINE.match(rest):
            self._settle()
            return
        if heading := _HEADING.match(rest):
            self._settle()
            self._in_list = False
            self._paragraph("", heading[1] or "")
            self._settle()
            return
        if item := _ITEM.match(rest):
            self._settle()
            self._in_list = True
            self._read_item(item, rest[item.end() :], quotes)
            return
        if not rest[0].isspace() and self._at_break:
            self._in_list = False
        self._paragraph("", rest)
        self._after_text = True

    def _pending(self) -> bool:
        return self._row is not None or bool(self._held)

    def _read_code(self, line: str, fence: _Fence) -> None:
        end = _FENCE_END.match(line)
        if end and end[1][0] == fence.mark and len(end[1]) >= fence.length:
            self._fence = None
        else:
            self._put_code(line)

    def _open_fence(self, line: str, quotes: int) -> bool:
        fence = _FENCE.match(line)
        if fence is None:
            return False
        self._settle()
        marks = fence[1] or fence[2]
        self._fence = _Fence(marks[0], len(marks), quotes)
        return True

    def _read_item(self, item: re.Match[str], content: str, quotes: int) -> None:
        if self._open_fence(content, quotes):
            return
        marker = "•" if item[2] in "-*" else item[2]
        if task := _TASK.match(content):
            marker = "☐" if task[1] == " " else "☑"
            content = content[task.end() :]
        self._paragraph(f"{item[1]}{marker} ", content)

    def _read_table(self, line: str) -> bool:
        """A line with a pipe may be a table's head: only the line after it tells."""
        if "|" not in line:
            self._in_table = False
            self._settle_row()
            return False
        if _DELIMITER_ROW.match(line) and (self._row is not None or line.lstrip().startswith("|")):
            self._settle_held()
            head, self._row = self._row, None
            self._in_table = True
            if head is not None:
                self._put_row(head)
            return True
        if self._in_table:
            self._put_row(line)
            return True
        self._settle_row()
        if _ITEM.match(line) or _HEADING.match(line):
            return False
        self._settle_held()
        self._row = line
        return True

    def _paragraph(self, prefix: str, line: str) -> None:
        """A line of running text. Held back while bold that it opened may still be closed by the next."""
        if not self._held:
            self._held_prefix = prefix
        self._held.append(line)
        text = "\n".join(self._held)
        plain, urls, still_open = flatten(text)
        if still_open and len(self._held) < HELD_LINES and len(text) < HELD_CHARS:
            return
        self._held.clear()
        self._put_line(self._held_prefix, plain, urls)

    def _settle(self) -> None:
        """What comes next is no continuation: pass on what waited for one."""
        self._settle_row()
        self._settle_held()

    def _settle_row(self) -> None:
        if self._row is not None:
            row, self._row = self._row, None
            self._paragraph("", row)
            self._after_text = True

    def _settle_held(self) -> None:
        if self._held:
            plain, urls, _ = flatten("\n".join(self._held))
            self._held.clear()
            self._put_line(self._held_prefix, plain, urls)

    # --- output -----------------------------------------------------------------------------------------------

    def _put_row(self, line: str) -> None:
        cells = _CELL_BORDER.split(line.strip())
        if cells and not cells[0].strip():
            cells = cells[1:]
        while cells and not cells[-1].strip():
            cells = cells[:-1]
        text = ""
        urls: list[tuple[int, int]] = []
        for number, cell in enumerate(cells):
            text += " | " if number else ""
            plain, spans, _ = flatten(cell.strip())
            urls += [(start + len(text), end + len(text)) for start, end in spans]
            text += plain.replace("\n", " ")
        self._put_line("", text, tuple(urls))

    def _put_line(self, prefix: str, plain: str, urls: tuple[tuple[int, int], ...]) -> None:
        shift = len(prefix)
        self._put(f"{prefix}{plain}\n", Boundary.LINE, tuple((start + shift, end + shift) for start, end in urls))

    def _put_code(self, line: str) -> None:
        self._put(line + "\n", Boundary.LINE, ((0, len(line)),) if line else ())

    def _break(self) -> None:
        if not self._at_break:
            self._put("\n", Boundary.PARAGRAPH)
            self._at_break = True

    def _put(self, text: str, boundary: Boundary, keep: tuple[tuple[int, int], ...] = ()) -> None:
        if self._owed:
            self._pieces.put(self._owed, Boundary.LINE, ())
            self._owed = ""
        self._pieces.put(text, boundary, keep)
        self._at_break = False
        self._since_pause = True


def _without_quotes(line: str, depth: int) -> tuple[str, int]:
    """The line without at most depth quote marks, and how many there were."""
    position = count = 0
    while count < depth and (mark := _QUOTE.match(line, position)):
        position = mark.end()
        count += 1
    return line[position:], count


class _Pieces:
    """Gathers text into pieces of at most PIECE_BYTES."""

    def __init__(self) -> None:
        self._done: list[Piece] = []
        self._texts: list[str] = []
        self._keep: list[tuple[int, int]] = []
        self._chars = 0
        self._bytes = 0
        self._boundary = Boundary.NONE

    def put(self, text: str, boundary: Boundary, keep: tuple[tuple[int, int], ...]) -> None:
        size = len(text) if text.isascii() else len(text.encode("utf-8", "replace"))
        if size > PIECE_BYTES:
            for start in range(0, len(text), LINE_CHARS):
                self.put(text[start : start + LINE_CHARS], Boundary.NONE, ())
            self._boundary = boundary
            return
        if self._bytes + size > PIECE_BYTES:
            self._close()
        self._keep += [(start + self._chars, end + self._chars) for start, end in keep]
        self._texts.append(text)
        self._chars += len(text)
        self._bytes += size
        self._boundary = boundary

    def drop_line_break(self) -> bool:
        """Take back the line break just put: the line it would end is not known to be over. False: there was none."""
        if not self._texts or not self._texts[-1].endswith("\n"):
            return False
        self._texts[-1] = self._texts[-1][:-1]
        self._chars -= 1
        self._bytes -= 1
        self._boundary = Boundary.NONE
        return True

    def take(self, boundary: Boundary | None = None, *, even_empty: bool = False) -> tuple[Piece, ...]:
        """All pieces so far; boundary replaces the one behind the last."""
        if boundary is not None and (self._texts or even_empty):
            self._boundary = boundary
            self._close()
        elif self._texts:
            self._close()
        done, self._done = tuple(self._done), []
        return done

    def _close(self) -> None:
        self._done.append(Piece("".join(self._texts), self._boundary, tuple(self._keep)))
        self._texts.clear()
        self._keep.clear()
        self._chars = self._bytes = 0
        self._boundary = Boundary.NONE
