"""The supervisor as chaos runs start it: the product's own start, with its kill points in place and short pauses.

    python -m tests.chaos.supervisor_entry BOARD HOME LOCKS [SOCKET]

With SOCKET (a descriptor) it is a mould: all is imported, and each packet "start" forks one supervisor, whose pid is the
answer. That spares a run of hundreds of lives their imports; a life in ten is started without it, and timed.
"""

import functools
import os
import signal
import socket
import sys
from pathlib import Path

from protocol.gateway import Spent
from protocol.to_supervisor import PieceMade, TurnEnded
from supervisor import app, gatekeeper, launcher, pool, start
from supervisor.channels.wechat.client import WeChatChannel
from supervisor.core import starts
from supervisor.core.lease import Gone, Opened, Said
from supervisor.gatekeeper import Gatekeeper
from supervisor.intake import Intake
from supervisor.launcher import Zygote
from supervisor.pool import Pool
from supervisor.scheduler import SchedulerLoop
from supervisor.store import Store
from tests.chaos.points import Board, wrap

ROOT = Path(__file__).resolve().parent.parent.parent


def install(board_path: Path) -> None:
    board = Board(board_path)
    wrap(board, Store, "record_batch", before="before_commit_batch", after="after_commit_batch", when=_has_messages)
    wrap(board, Store, "apply", before="before_commit", after="after_commit")
    wrap(board, WeChatChannel, "fetch", after="batch_received", when_result=lambda batch: bool(batch.messages))
    wrap(board, WeChatChannel, "send_text", before="before_send", after="after_send_before_record")
    wrap(board, Intake, "_judge", before="intake_judges")
    wrap(board, Zygote, "launch", before="worker_wanted", after="worker_forked")
    wrap(board, Pool, "_welcome", before="worker_hello", after="grant_sent")
    wrap(board, Pool, "give", before="before_give", after="turn_given")
    wrap(board, SchedulerLoop, "_hear", before="session_opened", when=lambda _, event: isinstance(event, Opened))
    wrap(board, SchedulerLoop, "_hear", before="piece_heard", when=_said(PieceMade))
    wrap(board, SchedulerLoop, "_hear", before="turn_end_heard", when=_said(TurnEnded))
    wrap(board, SchedulerLoop, "_hear", before="worker_gone", when=lambda _, event: isinstance(event, Gone))
    wrap(board, SchedulerLoop, "_close", before="before_close", after="after_close")
    wrap(board, Zygote, "_open", after="zygote_started")
    wrap(board, Store, "open", after="journal_opened")
    wrap(board, start, "carry_on", before="recovery_began", after="recovery_done")
    app.carry_on = start.carry_on
    wrap(board, Gatekeeper, "_open", after="gateway_started")
    wrap(board, Gatekeeper, "admit", after="token_issued")
    wrap(board, Gatekeeper, "_hear", before="spent_heard", when=lambda _, message: isinstance(message, Spent))
    # By argument as well, since that is how the harness knows its own processes.
    launcher.ENTRY = f"from tests.chaos.zygote_entry import main; main({str(board_path)!r})"
    Zygote.__init__.__defaults__ = (launcher.ENTRY,)
    Zygote.start.__func__.__defaults__ = (launcher.ENTRY,)
    gatekeeper.ENTRY = f"from tests.chaos.gateway_entry import main; main({str(board_path)!r})"
    Gatekeeper.__init__.__kwdefaults__["entry"] = gatekeeper.ENTRY
    # Kills come faster here than anywhere: pauses that protect a machine from them would be all that is tested.
    gatekeeper.AGAIN_S = 0.05
    pool.Starts = functools.partial(starts.Starts, window_s=0.05, pause_s=0.1)


def _has_messages(_store: object, _account: object, batch: object, _at: object) -> bool:
    return bool(batch.messages)  # type: ignore[attr-defined]


def _said(kind: type) -> "object":
    return lambda _, event: isinstance(event, Said) and isinstance(event.message, kind)


def run(home: str, locks: str) -> int:
    return app.start(home=home, config_file=None, log_level="info", detach=app.Detach.NO, locks=Path(locks))


def mould(control: socket.socket, home: str, locks: str) -> None:
    """Until the other end is closed."""
    while packet := control.recv(4096):
        while True:
            try:
                if os.waitpid(-1, os.WNOHANG) == (0, 0):
                    break
            except ChildProcessError:
                break
        log = packet.decode()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                control.close()
                os.setsid()
                signal.signal(signal.SIGINT, signal.default_int_handler)
                stderr = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
                os.dup2(stderr, 2)
                os.close(stderr)
                code = run(home, locks)
            finally:
                os._exit(code)
        control.send(str(pid).encode())


def main() -> None:
    board, home, locks = sys.argv[1:4]
    install(Path(board))
    if len(sys.argv) > 4:
        mould(socket.socket(fileno=int(sys.argv[4])), home, locks)
        return
    sys.exit(run(home, locks))


if __name__ == "__main__":
    main()
