"""Logins as they really go: nobody at the terminal, codes that lapse, a phone that never confirms."""

from collections.abc import Callable

from tests.fakes.stage import Stage

Stages = Callable[..., Stage]


def qr_requests(bridge: Stage) -> int:
    return len(bridge.wechat.requests("get_bot_qrcode"))


def test_a_start_without_an_account_and_without_a_terminal_waits_and_shows_no_code_by_itself(stage: Stages) -> None:
    """B-047"""
    with stage() as bridge:
        bridge.bridge.start()

        assert "bridge-ctl login" in bridge.bridge.ctl("status").stdout
        assert qr_requests(bridge) == 0
        assert bridge.wechat.requests("getupdates") == []
        assert not [line for line in bridge.bridge.lines if "liteapp" in line]


def test_a_code_that_lapses_is_replaced_on_the_screen_and_never_once_it_was_scanned(stage: Stages) -> None:
    """B-085"""
    with stage() as bridge:
        bridge.bridge.start()
        bridge.wechat.login_script(["wait", "expired", "wait", "expired", "wait", "scaned", "confirmed"], bridge.me)

        done = bridge.bridge.ctl("login", "--name", "default")

        shown = [line for line in done.stdout.splitlines() if line.startswith("http")]
        assert len(shown) == len(set(shown)) == 3
        assert qr_requests(bridge) == 3
        bridge.answer_to(bridge.me, "signed in")


def test_a_phone_that_never_confirms_ends_the_login_with_a_reason_and_leaves_the_old_one_as_it_was(
    stage: Stages,
) -> None:
    """B-106"""
    with stage() as bridge:
        bridge.begin()
        before = (bridge.bridge.home / "credentials.json").read_bytes()
        asked = qr_requests(bridge)
        bridge.wechat.login_script(["wait", "expired"] * 3)

        done = bridge.bridge.ctl("login", check=False)

        assert done.returncode == 1
        assert "phone" in done.stderr and "Traceback" not in done.stderr
        assert qr_requests(bridge) - asked == 3
        assert (bridge.bridge.home / "credentials.json").read_bytes() == before
        bridge.answer_to(bridge.me, "still signed in")


def test_a_login_beside_a_running_bridge_is_used_by_its_very_next_poll(stage: Stages) -> None:
    """B-032"""
    with stage() as bridge:
        bridge.begin()
        old = bridge.bridge.status()["accounts"][0]["account"]
        bridge.wechat.revoke(old)
        bridge.bridge.wait_log("account_expired")

        new = bridge.sign_in(bridge.me)

        polls = [request["bot"] for request in bridge.wechat.requests("getupdates")]
        bridge.answer_to(bridge.me, "by the new token")
        after = [request["bot"] for request in bridge.wechat.requests("getupdates")][len(polls) :]
        assert new != old
        assert set(after) <= {new}
