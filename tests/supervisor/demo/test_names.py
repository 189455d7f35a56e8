"""Names in the real service's form."""

import random
import re

from hypothesis import given
from hypothesis import strategies as st

from supervisor.demo.names import Mint


@given(times=st.lists(st.floats(min_value=1.7e9, max_value=2e9), min_size=1, max_size=50), seed=st.integers())
def test_message_ids_only_rise_and_exceed_what_a_double_holds(times: list[float], seed: int) -> None:
    mint = Mint(random.Random(seed))

    ids = [mint.message_id(now) for now in times]

    assert ids == sorted(set(ids))
    assert all(2**53 < i < 2**64 for i in ids)


def test_ids_have_the_forms_of_captures() -> None:
    mint = Mint(random.Random(1))
    bot_id = mint.bot_id()

    assert re.fullmatch(r"o9cq80[A-Za-z0-9_-]{22}@im\.wechat", mint.user_id())
    assert re.fullmatch(r"[0-9a-f]{12}@im\.bot", bot_id)
    assert re.fullmatch(re.escape(bot_id) + r":060000[0-9a-f]+", mint.bot_token(bot_id))
    assert re.fullmatch(r"[0-9a-f]{32}", mint.qr_ticket())
    assert len(mint.reply_token()) == 136


def test_huge_ids_start_at_the_very_end_and_differ() -> None:
    mint = Mint(random.Random(1))

    assert [mint.huge_id(), mint.huge_id()] == [2**64 - 1, 2**64 - 2]
