"""A stranger's file name is one harmless component, whatever it was; bytes tell the kind; the oldest go first."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.media import HEAD_BYTES, NAME_BYTES, UNKNOWN, Kept, safe_name, sniff, surplus

ROUGH = st.text(
    st.one_of(
        st.sampled_from("/\\.\0:~- \n\r\t\u202e\u200f\u2066\u2028\ufeff\u200d\ud800\udfff\u0301é中"),
        st.characters(),
    ),
    max_size=400,
)


@pytest.mark.parametrize(
    ("wanted", "name"),
    [
        ("../../config.toml", "config.toml"),
        ("/etc/x", "x"),
        ("a/../../b", "b"),
        ("..", "file"),
        (".", "file"),
        ("", "file"),
        ("\0x", "x"),
        ("a/", "a"),
        ("/", "file"),
        (" . . ", "file"),
    ],
)
def test_b024_parent_steps_and_empty_names_leave_one_component(wanted: str, name: str) -> None:
    assert safe_name(wanted, fallback="file") == name


def test_b024_a_long_name_keeps_its_extension() -> None:
    ascii_name, chinese = (
        safe_name("a" * 4000 + ".pdf", fallback="file"),
        safe_name("报" * 400 + ".docx", fallback="file"),
    )

    assert ascii_name == "a" * (NAME_BYTES - 4) + ".pdf"
    assert chinese.endswith("报.docx")
    assert len(chinese.encode()) <= NAME_BYTES
    assert len(safe_name("x." + "y" * 4000, fallback="file").encode()) <= NAME_BYTES


@pytest.mark.parametrize(
    ("wanted", "name"),
    [
        ("..\\..\\x.txt", "x.txt"),
        ("C:\\x", "x"),
        ("CON", "_CON"),
        ("con.txt", "_con.txt"),
        ("lpt1", "_lpt1"),
        ("console.log", "console.log"),
        ("name.", "name"),
        ("name. . ", "name"),
        ("-rf", "rf"),
        (".bashrc", "bashrc"),
        ("~root", "root"),
        ("a:b", "a_b"),
        ("exe\u202egpj.exe", "exegpj.exe"),
        ("a\r\nb\t c", "ab c"),
        ("[bridge: x].txt", "_bridge_ x_.txt"),
        ("half \ud83d name", "half name"),
    ],
)
def test_b075_separators_of_any_system_and_special_names_are_neutralised(wanted: str, name: str) -> None:
    assert safe_name(wanted, fallback="file") == name


@pytest.mark.parametrize(
    "name", ["测试.txt", "报告.txt", "отчёт.pdf", "한글.hwp", "👨‍👩‍👧.png", "résumé (2).txt", "a b.tar.gz"]
)
def test_b108_letters_of_any_script_stay(name: str) -> None:
    assert safe_name(name, fallback="file") == unicodedata.normalize("NFC", name)


@pytest.mark.parametrize(
    ("wanted", "name"),
    [
        ("é\x9d\x9eæ\x9d¡.csv", "非条.csv"),
        ("ã¡¡\ud7fc.csv", "㡡.csv"),
        ("résumé-©.txt", "résumé-©.txt"),
        ("Ã©tude.txt", "Ã©tude.txt"),
    ],
)
def test_b113_only_names_that_were_chinese_are_mended(wanted: str, name: str) -> None:
    assert safe_name(wanted, fallback="file") == name


def test_two_spellings_of_one_name_become_one() -> None:
    assert safe_name("e\u0301.txt", fallback="file") == safe_name("\u00e9.txt", fallback="file")


@given(ROUGH)
def test_whatever_comes_in_a_plain_component_comes_out(wanted: str) -> None:
    name = safe_name(wanted, fallback="file")

    assert 0 < len(name.encode()) <= NAME_BYTES
    assert not set(name) & set('/\\\0:<>"|?*[]')
    assert name not in (".", "..")
    assert name[0] not in ".-~ "
    assert name[-1] not in ". "
    assert not any(unicodedata.category(char) in ("Cc", "Cs") or char in "\u202e\u2066\u200f\ufeff" for char in name)
    assert safe_name(name, fallback="file") == name or "." in name, "once is enough"


@pytest.mark.parametrize(
    ("head", "mime"),
    [
        (b"\x89PNG\r\n\x1a\n....", "image/png"),
        (b"\xff\xd8\xff\xe0", "image/jpeg"),
        (b"GIF89a..", "image/gif"),
        (b"RIFF\0\0\0\0WEBPVP8 ", "image/webp"),
        (b"RIFF\0\0\0\0WAVEfmt ", "audio/wav"),
        (b"\0\0\0\x18ftypisom", "video/mp4"),
        (b"\x02#!SILK_V3....", "audio/silk"),
        (b"%PDF-1.7", "application/pdf"),
        (b"<svg onload=x>", UNKNOWN.mime),
        (b"", UNKNOWN.mime),
    ],
)
def test_the_first_bytes_tell_the_kind(head: bytes, mime: str) -> None:
    assert sniff(head).mime == mime
    assert sniff(head).picture == mime.startswith("image/")


@given(st.binary(max_size=HEAD_BYTES))
def test_any_bytes_have_a_kind(head: bytes) -> None:
    assert sniff(head).mime


def test_the_oldest_go_until_each_peer_and_all_together_have_room() -> None:
    files = [Kept("a", f"a{n}", 10, float(n)) for n in range(4)] + [Kept("b", "b0", 10, 0.5)]

    assert surplus(files, per_peer_bytes=100, total_bytes=100) == ()
    assert [file.path for file in surplus(files, per_peer_bytes=20, total_bytes=100)] == ["a0", "a1"]
    assert [file.path for file in surplus(files, per_peer_bytes=20, total_bytes=20)] == ["a0", "a1", "b0"]


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 50), st.integers(0, 9)), max_size=20),
    st.integers(0, 100),
    st.integers(0, 200),
)
def test_what_stays_fits(rows: list[tuple[str, int, int]], per_peer: int, total: int) -> None:
    files = [Kept(peer, str(n), size, float(at)) for n, (peer, size, at) in enumerate(rows)]

    going = surplus(files, per_peer_bytes=per_peer, total_bytes=total)

    left = set(files) - set(going)
    assert len(set(going)) == len(going)
    assert sum(file.size for file in left) <= total
    assert all(sum(file.size for file in left if file.peer == peer) <= per_peer for peer in "abc")
