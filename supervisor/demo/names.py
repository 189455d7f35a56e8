"""Makes every name the simulated service hands out, in the form the real one uses. Random only through what it is given."""

import base64
from dataclasses import dataclass
from random import Random

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-"
_UINT64_MAX = 2**64 - 1


@dataclass(slots=True)
class Mint:
    """Ids and tokens. Message ids are snowflakes (milliseconds shifted by 22), above 2^53, and only ever rise."""

    random: Random
    _last_message_id: int = 0
    _next_huge_id: int = _UINT64_MAX

    def message_id(self, now_s: float) -> int:
        self._last_message_id = max(self._last_message_id + 1, (int(now_s * 1000) << 22) | self.random.getrandbits(12))
        return self._last_message_id

    def huge_id(self) -> int:
        self._next_huge_id -= 1
        return self._next_huge_id + 1

    def user_id(self) -> str:
        return "o9cq80" + self._letters(22) + "@im.wechat"

    def bot_id(self) -> str:
        return self._hex(6) + "@im.bot"

    def bot_token(self, bot_id: str) -> str:
        return f"{bot_id}:060000{self._hex(20)}"

    def qr_ticket(self) -> str:
        return self._hex(16)

    def qr_code(self) -> str:
        return self._letters(10)

    def reply_token(self) -> str:
        return "AARzJW" + self._letters(130)

    def ticket(self) -> str:
        """Base64 that always holds `+`, `/` and `=`: a client that forgets to encode it fails."""
        return "+/" + base64.b64encode(self.random.randbytes(46)).decode()

    def key(self) -> bytes:
        return self.random.randbytes(16)

    def _letters(self, count: int) -> str:
        return "".join(self.random.choices(_LETTERS, k=count))

    def _hex(self, byte_count: int) -> str:
        return self.random.randbytes(byte_count).hex()
