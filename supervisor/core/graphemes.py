"""Where one visible character ends and the next begins, so that no cut parts a letter from its accent or a family.

In comes text, out come indices in code points. Follows the grammar of Unicode's extended grapheme clusters (UAX 29,
table 1b). admission.py caps with it, delivery.py makes bubbles with it.
"""

from collections.abc import Iterator

import regex

# The library has \X for this, but it looks back over every flag already passed: a million regional indicators take
# minutes (test_a_million_of_any_hostile_character_is_measured_in_seconds). This spelling only ever looks ahead.
_CLUSTER = regex.compile(
    r"""
    \r\n
    | [\p{GCB=Control}\r\n]
    | \p{GCB=Prepend}*
      (?: \p{Regional_Indicator}{2}
        | \p{Extended_Pictographic} (?: \p{GCB=Extend}*+ \N{ZERO WIDTH JOINER} \p{Extended_Pictographic} )*+
        | \p{GCB=L}*+ (?: \p{GCB=V}++ | \p{GCB=LV} \p{GCB=V}*+ | \p{GCB=LVT} ) \p{GCB=T}*+
        | \p{GCB=L}++
        | \p{GCB=T}++
        | [^\p{GCB=Control}\r\n]
      )
      [\p{GCB=Extend}\p{GCB=SpacingMark}\N{ZERO WIDTH JOINER}]*+
    """,
    regex.VERBOSE | regex.VERSION1,
)


# Between two such characters there always is a boundary, and beside a control character too: no rule of UAX 29 joins them.
_APART = regex.compile(
    r"[\p{GCB=Other}]{2} | \r(?!\n)[\s\S] | [\s\S] [\p{GCB=Control}\r] | [^\r]\n | [\p{GCB=Control}\n][\s\S]",
    regex.VERBOSE | regex.VERSION1,
)


class Boundaries:
    """Asks whether a cluster ends at a place of one text: `at in Boundaries(text)`.

    The whole grammar is run, once, when two neighbours alone cannot tell.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._all: frozenset[int] | None = None

    def __contains__(self, at: object) -> bool:
        if not isinstance(at, int) or not 0 < at <= len(self._text):
            return False
        if at == len(self._text) or _APART.match(self._text, at - 1):
            return True
        if self._all is None:
            self._all = frozenset(boundaries(self._text))
        return at in self._all


def boundaries(text: str) -> Iterator[int]:
    """The end of every cluster, rising; the last one is len(text). Nothing for an empty text."""
    for cluster in _CLUSTER.finditer(text):
        yield cluster.end()


def cut(text: str, limit: int) -> int:
    """The last boundary within the first `limit` code points.

    returns  len(text) when all of it fits; `limit` itself, between code points, when one cluster alone is longer
    raises   ValueError if limit < 0
    """
    if limit < 0:
        raise ValueError(f"a limit of {limit} code points")
    if len(text) <= limit:
        return len(text)
    last = 0
    for end in boundaries(text):
        if end > limit:
            break
        last = end
    return last or limit
