"""What needs no crowd: the journal alone on a real disk, a long answer, and what the programs themselves weigh.

The ratios are what CI holds: they stand for more than seconds do on a machine that nobody knows.
"""

import itertools
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from protocol.content import Role
from protocol.ids import AccountId, Cursor, MessageId, PeerId
from supervisor.channels.base import Batch, RawMessage
from supervisor.core.bubbles import Size, numbered
from supervisor.store import Store
from tests.bench.figures import Figure
from tests.bench.stage import Crowd, crowd, processor_s
from tests.fakes.bridge import CTL, ROOT
from tests.fakes.wechat import SimulatedWeChat
from worker.core.reply import Reply

ME = "bench@im.wechat"
BATCH = 100
SIZE = Size(units=1800, json_bytes=12_000)
# A chapter of a long answer: mostly prose in two languages, with a list, code and a table here and there.
PROSE = (
    "The bridge keeps **every** message in its journal before anything acts on it, so that a restart at any moment finds "
    "what was written, what was answered and what still waits. A worker is told one turn at a time, and `/stop` ends it "
    "[at once](https://example.org/stop). 每个人都有自己的进程，互不影响；消息先写进日志，再交给代理处理。\n\n"
)
CHAPTER = PROSE * 6 + (
    "## What follows\n\n1. one thing to do\n2. and *another*\n   - with a detail\n\n"
    "```python\nfor line in answer:\n    print(line)  # kept as it is\n```\n\n| name | figure |\n| --- | --- |\n| a | 1 |\n\n"
)


def measure(folder: Path) -> Iterator[Figure]:
    yield Figure("recorded", f"messages recorded, {BATCH} a batch, durable", _recorded(folder), "/s", 3000, least=True)
    long = CHAPTER * (1_000_000 // len(CHAPTER))
    yield Figure("split", "a 1 MB answer flattened and split", [_split_ms(long) for _ in range(5)], "ms", 150)


def ratios(folder: Path) -> dict[str, float]:
    """Of processor time alone, the least of several tries, so that what else the machine does weighs little."""
    whole = CHAPTER * (800_000 // len(CHAPTER))
    part = whole[: len(whole) // 8]
    python = _program_s("import asyncio, json, sqlite3, ssl, subprocess")
    with SimulatedWeChat(hold_s=5.0) as wechat, crowd(wechat, folder / "home", others=0) as at:
        turns = min(_hundred_turns_s(at) for _ in range(3))
    return {
        "a long answer beside eight of an eighth": _least(_split_ms, whole) / (8 * _least(_split_ms, part)),
        "bridge-ctl completion beside Python's own modules": _program_s(CTL, "completion", "bash") / python,
        "the supervisor's imports beside Python's own modules": _program_s("import supervisor.app") / python,
        "a worker's imports beside Python's own modules": _program_s("import worker.zygote") / python,
        "the supervisor in 100 echo turns beside its imports": turns / _program_s("import supervisor.app"),
    }


def _hundred_turns_s(at: Crowd) -> float:
    at.turn_ms(at.owner)
    before = processor_s(at.bridge.pid)
    for _ in range(100):
        at.turn_ms(at.owner)
    return processor_s(at.bridge.pid) - before


def _least(measured: Callable[[str], float], text: str, times: int = 5) -> float:
    return min(measured(text) for _ in range(times))


def _program_s(code: str, *arguments: str, times: int = 9) -> float:
    """The processor time of a Python that does this."""
    return min(_one_program_s(code, *arguments) for _ in range(times))


def _one_program_s(code: str, *arguments: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", code, *arguments], check=True, stdout=subprocess.DEVNULL, env=env)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def _recorded(folder: Path) -> list[float]:
    store, _ = Store.open(folder / "journal.db")
    account = AccountId(ME)
    store.sign_in(account, "bot", "default", Role.OPERATOR, 0.0)
    numbers = itertools.count(1)
    rates = []
    for _ in range(30):
        batch = Batch(tuple(_message(next(numbers)) for _ in range(BATCH)), Cursor(f"after {next(numbers)}"), None)
        began = time.perf_counter()
        store.record_batch(account, batch, time.time())
        rates.append(BATCH / (time.perf_counter() - began))
    store.close()
    return rates


def _message(number: int) -> RawMessage:
    wire = {
        "message_id": number,
        "from_user_id": ME,
        "item_list": [{"type": 1, "text_item": {"text": f"hello {number}"}}],
    }
    return RawMessage(MessageId(str(number)), PeerId(ME), 1_700_000_000_000 + number, None, json.dumps(wire).encode())


def _split_ms(text: str) -> float:
    """As it goes in a turn: flattened while it streams, then cut into numbered bubbles."""
    began = time.process_time()
    reply, pieces = Reply(), []
    for start in range(0, len(text), 4096):
        pieces += reply.write(text[start : start + 4096])
    pieces += reply.finish()
    numbered("".join(piece.text for piece in pieces), size=SIZE)
    return (time.process_time() - began) * 1000
