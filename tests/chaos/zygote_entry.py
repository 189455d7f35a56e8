"""The zygote as chaos runs start it, with its kill points and those of the nannies and workers that it forks.

`echo` is the scripted host here: it answers as the message's words say, and writes down each prompt that reaches it.
"""

import os
from pathlib import Path
from typing import Any

from protocol.spec import Reaped, Spawned
from protocol.to_supervisor import PieceMade, Ready, SessionOpened, TurnEnded
from tests.chaos import host
from tests.chaos.points import Board, wrap
from worker import entry, hosts, link, nanny, turn, zygote


def main(board_path: str) -> None:
    board = Board(Path(board_path))
    host.board = board

    def in_a_worker(kind: type) -> Any:
        """And not where the zygote rehearses a turn."""
        return lambda _, message: isinstance(message, kind) and board.standing_in is not None

    wrap(board, zygote._Zygote, "_spawn", before="before_fork")
    wrap(
        board,
        zygote._Zygote,
        "_say",
        before="forked_untold",
        when=lambda _, message, *rest: isinstance(message, Spawned),
    )
    wrap(
        board,
        zygote._Zygote,
        "_say",
        before="reaped_untold",
        when=lambda _, message, *rest: isinstance(message, Reaped),
    )
    wrap(board, nanny, "_start_worker", after="worker_made")
    wrap(board, nanny, "_connect", before="nanny_connects")
    wrap(board, nanny._Relay, "_carry", before="nanny_carries")
    wrap(board, nanny._Relay, "say_last", before="worker_ended_untold")
    wrap(board, entry, "apply", before="before_sandbox")
    wrap(board, link.Link, "tell", before="before_hello", when=in_a_worker(Ready))
    for kind, point in ((SessionOpened, "before_opened"), (PieceMade, "before_piece"), (TurnEnded, "before_turn_end")):
        wrap(board, link.Link, "send", before=point, when=in_a_worker(kind))
    born = nanny.main

    def nanny_main(*args: Any) -> None:
        board.standing_in = os.getpid()
        board.passing("nanny_born")
        born(*args)

    nanny.main = nanny_main

    async def serve(one: Any, grant: Any) -> None:
        board.passing("granted")
        hosts.HOSTS["echo"] = (
            "tests.chaos.host",
            "ScriptedSession",
        )  # here, since the zygote rehearses with the real one
        await turn.serve(one, grant)

    zygote.main(serve)
