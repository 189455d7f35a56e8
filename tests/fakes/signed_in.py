"""A real channel, signed in to the simulated service by a scan."""

import asyncio

from supervisor.channels.wechat import WeChatSettings
from supervisor.channels.wechat.client import Timing, WeChatChannel
from supervisor.channels.wechat.login import Confirmed, log_in
from supervisor.clock import SystemClock
from tests.fakes.wechat import SimulatedWeChat

DEADLINE_S = 30.0


class Desk:
    """Scans the first code as soon as it is shown."""

    def __init__(self, wechat: SimulatedWeChat, person: str) -> None:
        self._wechat = wechat
        self._person = person

    async def show_qr(self, url: str, number: int, of: int) -> None:
        # Not awaited here: the scan is over only when our own next question has made the bot.
        self.scanned = asyncio.ensure_future(asyncio.to_thread(self._wechat.scan, self._person))

    async def tell(self, line: str) -> None:
        pass

    async def ask_code(self, *, again: bool) -> str:
        raise AssertionError("no number was to be asked for")


async def sign_in(wechat: SimulatedWeChat, person: str) -> WeChatChannel:
    settings = WeChatSettings(base_url=wechat.base_url, cdn_base_url=wechat.cdn_url)
    desk = Desk(wechat, person)
    async with asyncio.timeout(DEADLINE_S):
        result = await log_in(settings, known_tokens=(), desk=desk, clock=SystemClock())
        await desk.scanned
    assert isinstance(result, Confirmed)
    assert result.credentials.account == person
    return WeChatChannel(result.credentials, settings, timing=Timing(slack_s=2.0))
