"""WeChat over Tencent's iLink bot API: this package's settings; the rest lives in its modules."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WeChatSettings:
    """The keys of [wechat] that the channel itself reads.

    proxy         the proxy's URL, None = go directly; never used for loopback
    poll_hold_ms  0 = the server decides how long it holds a poll
    """

    base_url: str = "https://ilinkai.weixin.qq.com"
    cdn_base_url: str = "https://novac2c.cdn.weixin.qq.com/c2c"
    bot_agent: str = "bridge-supervisor/0.1.0"
    channel_version: str = "0.1.0"
    proxy: str | None = None
    trusted_hosts: tuple[str, ...] = ("weixin.qq.com",)
    poll_hold_ms: int = 0
    max_reply_chars: int = 2000
