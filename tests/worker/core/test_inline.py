"""Running text without its marks."""

import pytest

from worker.core.inline import flatten


def plain(text: str) -> str:
    return flatten(text)[0]


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("**重要** *注意* __a__ _b_", "重要 注意 a b"),
        ("***both*** **a *b* c** **a *b*** ***a** b*", "both a b c a b a b"),
        ("**bold\nover two** lines", "bold\nover two lines"),
        ("~~gone~~ and ~5 ~/x", "gone and ~5 ~/x"),
        ("这是**“重点”**内容", "这是“重点”内容"),
        ("**注意：**正文", "注意：正文"),
        ("~~删除。~~后文", "删除。后文"),
        ("请**「看」**这里，**重点**v2，使用**Node**v20", "请「看」这里，重点v2，使用Nodev20"),
        ("**注意**:和*强调*，再_试_一次", "注意:和强调，再试一次"),
        ("한국어 **중요**는", "한국어 중요는"),
        ("**`code`** and *[x](https://y.z/w)*", "code and x (https://y.z/w)"),
        ("\\*not\\* \\# a", "*not* # a"),
        ("an **unclosed one", "an **unclosed one"),
        ("a ` stray and ``two", "a ` stray and ``two"),
    ],
)
def test_emphasis_loses_its_marks_and_no_word(written: str, shown: str) -> None:
    """B-043, B-095"""
    assert plain(written) == shown


@pytest.mark.parametrize(
    "text",
    [
        "run load_user_rows() via __enter__, MAX_LEN_2, a*b*c, 2 * 3 * 4, **kwargs, file_v2_final.pdf",
        "5**2 and 2**3**4 and 3 *4* 5",
        "f(*args, **kwargs) and f(**a,**b) and int *p, *q;",
        "(*a)*(*b) *.py *.txt",
        "__init__ __main__ _private_name_ snake_case_ _a_b",
        "C:\\new\\dir \\\\server\\share",
        "handlers[name](event) a[i][j] x[0](1)",
        "vector<int> a < b > c <div> x && y &copy",
        "#hashtag #1 -5 +3 1.5 2)",
        "a | b",
        "https://e.example/a_b_c/*x*?q=__y__&z=1",
        "===\n[^1] [1] [x]: y",
    ],
)
def test_identifiers_arithmetic_paths_and_addresses_stay_as_they_are(text: str) -> None:
    """B-053"""
    assert plain(text) == text
    assert plain(f"`{text}`") == text


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("[Example](https://example.com/a_b?x=1&y=(2))", "Example (https://example.com/a_b?x=1&y=(2))"),
        ('[文档](<https://e.example/x> "title")。', "文档 (https://e.example/x)。"),
        ("<https://e.example> <mailto:a@b.example> <a@b.example>", "https://e.example a@b.example a@b.example"),
        ("[https://e.example/a](https://e.example/a)", "https://e.example/a"),
        ("[e.example](https://e.example/)", "https://e.example/"),
        (
            "![chart](https://e.example/c.png) ![](https://e.example/d.png)",
            "chart (https://e.example/c.png) https://e.example/d.png",
        ),
        ("[text][ref]\n\n[ref]: https://e.example/z_a_b", "text [ref]\n\n[ref]: https://e.example/z_a_b"),
        ("[a](b", "[a](b"),
        ("[**bold**](https://e.example)", "bold (https://e.example)"),
        ("`[a](b)`", "[a](b)"),
        ("[q](https://e.example/?a=1&amp;b=2)", "q (https://e.example/?a=1&b=2)"),
    ],
)
def test_a_link_keeps_label_and_address(written: str, shown: str) -> None:
    """B-065"""
    assert plain(written) == shown


@pytest.mark.parametrize(
    ("text", "still_open"),
    [("a **b", True), ("a **b** c", False), ("~~a", True), ("*a", False), ("2 ** 3", False), ("x**2", False)],
)
def test_bold_that_waits_for_its_end_is_told(text: str, still_open: bool) -> None:
    assert flatten(text)[2] is still_open


def test_addresses_are_told_by_their_spans() -> None:
    text, spans, _ = flatten("**see** [x](https://e.example/a), https://e.example/b_c. <https://e.example>")

    assert [text[start:end] for start, end in spans] == [
        "https://e.example/a",
        "https://e.example/b_c",
        "https://e.example",
    ]
