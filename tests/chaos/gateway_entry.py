"""The gateway as chaos runs start it, with its kill points."""

from pathlib import Path

from protocol.gateway import Spent
from supervisor import gateway
from supervisor.pairend import PairEnd
from tests.chaos.points import Board, wrap


def main(board_path: str) -> None:
    board = Board(Path(board_path))
    board.passing("gateway_born")
    wrap(board, gateway.Gateway, "_serve", before="call_received")
    wrap(board, PairEnd, "send", before="before_spent", when=lambda _, message: isinstance(message, Spent))
    gateway.main()
