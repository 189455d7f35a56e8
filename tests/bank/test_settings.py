"""Settings files that people really write, given to a bridge that runs."""

from collections.abc import Callable

from tests.fakes.stage import Stage

Stages = Callable[..., Stage]

BROKEN = (
    ("[admission]\nmax_queue = 1\nmax_queue = 2\n", "max_queue is set twice"),
    ("[workers]\n[workers]\n", "[workers] is set twice"),
    ('[[peers.list]]\nid = "a"\n', "peers"),
    ("[wechat]\nmax_reply_char = 10\n", "max_reply_chars"),
    ("[peers.alice@im.wechat]\n", 'needs quotes: [peers."alice@im.wechat"]'),
    ('[admission]\nallowed_peers = "alice@im.wechat"\n', "admission.allowed_peers"),
    ("[admission]\nallowed_peers = '[\"alice\"]'\n", "admission.allowed_peers"),
    ("[admission]\nallowed_peers = [1]\n", "admission.allowed_peers"),
)


def test_a_reload_of_a_broken_file_names_the_place_and_the_bridge_goes_on_with_what_it_had(stage: Stages) -> None:
    """B-079, B-105, B-115"""
    with stage(guests=1) as bridge:
        bridge.begin()
        file = bridge.bridge.home / "bridge.toml"
        good = file.read_text()
        (guest,) = bridge.guests

        for number, (text, named) in enumerate(BROKEN):
            file.write_text(text)
            done = bridge.bridge.ctl("reload", check=False)

            assert done.returncode != 0
            assert named in done.stderr and "bridge.toml" in done.stderr
            assert len(done.stderr.strip().splitlines()) == 1
            bridge.answer_to(guest, f"still admitted {number}")

        file.write_bytes(b"\xef\xbb\xbf" + good.replace("\n", "\r\n").encode())
        bridge.bridge.ctl("reload")
        bridge.answer_to(guest, "and after it")
