"""When somebody can be told something that they did not ask for.

WeChat shows a bot's message only within hours of its person's last one, and a few behind each. What cannot go now is
refused, and never kept: nobody waits for it. Neighbours: ctl.py sends for the operator, outgoing.py for their agent.
"""

from protocol.ids import PeerKey
from supervisor.clock import Clock
from supervisor.delivery import Delivery
from supervisor.peers import PeerBook


def closed(who: PeerKey, book: PeerBook, delivery: Delivery, clock: Clock) -> str:
    """Why nothing would be shown now; empty: it would."""
    wechat, record = book.settings.wechat, book.record(who)
    if record is None or record.last_inbound_at is None:
        return "its owner has not written yet; until then WeChat shows nothing"
    if clock.wall() - record.last_inbound_at >= wechat.reply_window_hours * 3600:
        return f"its owner last wrote over {wechat.reply_window_hours:g} hours ago; WeChat shows nothing"
    if delivery.budget_left(who) == 0:
        return f"{wechat.send_budget} messages went out since its owner wrote; they have to write again"
    return ""
