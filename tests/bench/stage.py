"""A bridge with an account signed in, and what all measurements ask of it."""

import contextlib
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.fakes.bridge import Bridge
from tests.fakes.wechat import SimulatedWeChat

MIB = 1024 * 1024
WORDS = "the same few words"


@dataclass(frozen=True, slots=True)
class Crowd:
    """owner: whose account it is. others: people whom the settings admit."""

    wechat: SimulatedWeChat
    bridge: Bridge
    bot: str
    owner: str
    others: Sequence[str]

    def turn_ms(self, person: str, text: str = WORDS) -> float:
        """One message and its answer: from the poll's answer, which the message ends, to the send's arrival."""
        before, seen = len(self.wechat.bubbles(person)), len(self.bridge.lines)
        said = self.wechat.say(person, text, to=self.bot)
        self._until_logged(f" part_sent peer={person} ", 1, seen)
        return float(self.wechat.bubbles(person)[before].at_ms - said.at_ms)

    def all_at_once(self, people: Sequence[str], text: str = WORDS) -> None:
        """One message from each in one batch, and every answer."""
        seen = len(self.bridge.lines)
        self.wechat.say_together([(person, {"text": text, "to": self.bot}) for person in people])
        self._until_logged(" message_closed ", len(people), seen)

    def _until_logged(self, words: str, count: int, seen: int) -> None:
        """In lines behind the first `seen`. The log is watched, because to look at phones while they are written to keeps
        the simulated service busier than the bridge."""
        end = time.monotonic() + 120
        while count > 0:
            assert time.monotonic() < end, f"{count} more lines with{words}are missing"
            time.sleep(0.001)
            new = self.bridge.lines[seen:]
            seen += len(new)
            count -= sum(words in line for line in new)

    def ready_ms(self, *, skip: int = 0) -> list[float]:
        """How long each worker took to be sandboxed and ready, in the order in which they were."""
        found = (re.search(r" worker_ready .* after_ms=([\d.]+)", line) for line in self.bridge.lines)
        return [float(one[1]) for one in found if one][skip:]


@contextlib.contextmanager
def crowd(
    wechat: SimulatedWeChat, folder: Path, *, others: int, settings: str = "", agent: str = ""
) -> Iterator[Crowd]:
    """settings: whole tables behind those that admit the others; agent: tables that stand before."""
    owner, *rest = [wechat.add_person() for _ in range(others + 1)]
    allowed = ", ".join(f'"{one}"' for one in rest)
    toml = f"{agent}\n[admission]\nallowed_peers = [{allowed}]\n[guests]\nmax_turns_per_hour = 0\n{settings}"
    with Bridge(folder, base_url=wechat.base_url, cdn_url=wechat.cdn_url, settings=toml) as bridge:
        bridge.start()
        client = bridge.popen_ctl("login")
        bot = wechat.scan(owner)
        client.communicate(timeout=30)
        yield Crowd(wechat, bridge, bot, owner, rest)
        bridge.stop()


def private_mib(processes: Sequence[psutil.Process]) -> float | None:
    """What no other process shares. None where the kernel does not tell: of what is not dumpable it tells root alone."""
    total = 0
    for process in processes:
        try:
            rollup = Path(f"/proc/{process.pid}/smaps_rollup").read_text(encoding="ascii")
        except OSError:
            return None
        found = re.findall(r"^Private_(?:Clean|Dirty):\s+(\d+) kB", rollup, re.MULTILINE)
        total += sum(int(kilobytes) * 1024 for kilobytes in found)
    return total / MIB


def processor_s(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)
