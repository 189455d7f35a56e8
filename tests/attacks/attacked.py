"""Worker behaviour of the attacks: does what a turn's text holds, a pickled function, and answers with its outcome.

Reached by the zygote's entry text, as the product's own serve() is: all that runs before it is the product.
"""

import base64
import errno
import json
import traceback
from collections.abc import Callable

import dill  # type: ignore[import-untyped]  # comes with multiprocess; ships no types

from protocol.ids import SessionId
from protocol.to_supervisor import Boundary, OpenedHow, PieceMade, SessionOpened, TurnEnded, TurnOutcome
from protocol.to_worker import Grant, Leave, RunTurn
from worker.link import Link

PIECE_CHARS = 15_000  # JSON of ASCII: within a piece's bytes


def packed(attack: Callable[[], object]) -> str:
    """Closures and all; what a module defines goes by name, so the zygote has to have imported that module."""
    text: str = base64.b64encode(dill.dumps(attack)).decode()
    return text


def attempted(attack: Callable[[], object]) -> dict[str, object]:
    """What came of it: see sandboxed.Outcome."""
    try:
        return {"value": attack()}
    except OSError as error:
        return {"code": error.errno or errno.EIO, "broke": "" if error.errno else repr(error)}
    except BaseException:
        return {"broke": traceback.format_exc()}


async def serve(link: Link, grant: Grant) -> None:
    await link.send(SessionOpened(SessionId("attack"), OpenedHow.NEW, "attack", "1"))
    while True:
        message = await link.receive()
        if message is None or isinstance(message, Leave):
            return
        if isinstance(message, RunTurn):
            told = json.dumps(attempted(dill.loads(base64.b64decode(message.prompt.text))))
            for number, start in enumerate(range(0, len(told), PIECE_CHARS)):
                text = told[start : start + PIECE_CHARS]
                await link.send(PieceMade(message.turn_id, number, text, Boundary.NONE))
            await link.send(TurnEnded(message.turn_id, TurnOutcome.COMPLETED))
