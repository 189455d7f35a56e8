"""Fuzzing whatever is read from others: frames, control frames, WeChat's JSON, settings, file names.

    python -m tests.chaos.fuzz TARGET [SECONDS]       with Google's atheris installed: guided by coverage, into the corpus

Each target takes bytes, and raises only if what it tries breaks its promise: a foreign word is a value or the one error
that its reader documents, soon, and in bounded size. tests/chaos/test_fuzz.py plays the corpus and random bytes to them.
"""

import contextlib
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from protocol.codec import Unframer, from_worker, to_supervisor, to_worker
from protocol.ctl import ctl_reply, ctl_request
from protocol.errors import ProtocolViolation
from protocol.gateway import from_gateway, to_gateway
from supervisor.channels.base import ChannelError
from supervisor.channels.wechat import wire
from supervisor.config import ConfigError, load
from supervisor.core.media import safe_name
from supervisor.home import Home
from worker.nanny import check

CORPUS = Path(__file__).resolve().parent.parent / "data" / "corpus"
_FOLDER = tempfile.TemporaryDirectory(prefix="fuzz-")


def frames(data: bytes) -> None:
    """A worker's stream: the nanny's unframer and check, then what the supervisor reads of the same bytes."""
    unframer = Unframer()
    with contextlib.suppress(ProtocolViolation):
        for payload in unframer.feed(data):
            message = check(bytes(payload))
            to_supervisor.decode(bytes(payload))
            repr(message)
    for codec in (from_worker, to_supervisor, to_worker, from_gateway, to_gateway):
        with contextlib.suppress(ProtocolViolation):
            codec.decode(data)


def control(data: bytes) -> None:
    for codec in (ctl_request, ctl_reply):
        with contextlib.suppress(ProtocolViolation):
            codec.decode(data)


def wechat(data: bytes) -> None:
    """An answer of WeChat's, of each kind, and each message in it as intake reads it."""
    for endpoint in (wire.GETUPDATES, wire.SENDMESSAGE, wire.GETCONFIG):
        try:
            answer = wire.read_answer(endpoint, wire.Answer(200, data))
        except ChannelError:
            continue
        wire.sent_message_id(answer)
        wire.typing_ticket(answer)
        for message in wire.parse_batch(answer).messages:
            message.message_id.encode("utf-8", "surrogatepass")
            wire.WeChatReader().parse(message.raw)
    wire.WeChatReader().parse(data)


def settings(data: bytes) -> None:
    file = Path(_FOLDER.name) / "bridge.toml"
    file.write_bytes(data)
    with contextlib.suppress(ConfigError):
        load(Home(Path(_FOLDER.name)), file)


def names(data: bytes) -> None:
    """Any name that a stranger gives a file is one harmless component of a path."""
    name = safe_name(data.decode("utf-8", "surrogateescape"), fallback="file")
    assert name and name not in (".", "..") and "/" not in name and "\0" not in name, name
    assert len(name.encode()) <= 255
    assert (Path(_FOLDER.name) / name).resolve().parent == Path(_FOLDER.name).resolve()


TARGETS: dict[str, Callable[[bytes], None]] = {one.__name__: one for one in (frames, control, wechat, settings, names)}


def main() -> None:
    import atheris

    name, seconds = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "60"
    target = TARGETS[name]
    atheris.instrument_all()
    folder = CORPUS / name
    folder.mkdir(parents=True, exist_ok=True)
    words = [
        sys.argv[0],
        str(folder),
        f"-max_total_time={seconds}",
        "-max_len=4096",
        "-timeout=5",
        "-rss_limit_mb=1024",
    ]
    atheris.Setup(words, target)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
