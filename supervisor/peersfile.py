"""peers.toml: what `allow` and `deny` have decided, written whole and atomically.

config.py reads it; this module alone writes it. One writer: the supervisor, while it holds the home's lock.
"""

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import Enum
from pathlib import Path
from typing import Any

import tomli_w

from protocol.errors import BridgeError
from supervisor.config import read_peers
from supervisor.core.policy import AgentOverrides, PeerOverrides

_HEAD = "# Written by `bridge-ctl allow` and `deny`. What stands here wins over [peers] of bridge.toml, key by key.\n\n"


class PeersUnwritable(BridgeError):
    """The disk refuses peers.toml; the old one is untouched."""


@dataclass(frozen=True, slots=True)
class PeersFile:
    """One home's peers.toml."""

    path: Path

    def with_entry(self, key: str, overrides: PeerOverrides) -> dict[str, PeerOverrides]:
        """What the file would hold with these overrides over the entry of one peer; Settings.with_stored_peers says
        whether that would do.

        key      ACCOUNT/ID, ID or label
        raises   ConfigError: the file is wrong as it stands
        """
        stored = read_peers(self.path)
        stored[key] = stored.get(key, PeerOverrides()).overridden(overrides)
        return stored

    def write(self, key: str, overrides: PeerOverrides) -> None:
        """Put these overrides over the entry of one peer, on disk. raises ConfigError, PeersUnwritable"""
        write(self.path, self.with_entry(key, overrides))


def write(file: Path, peers: Mapping[str, PeerOverrides]) -> None:
    """Replace the file, mode 0600: either the old or the new one is on disk, whenever the power goes. raises PeersUnwritable"""
    document = {"peers": {key: _table(overrides) for key, overrides in peers.items()}}
    data = (_HEAD + tomli_w.dumps(document)).encode()
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)
        try:
            with os.fdopen(descriptor, "wb") as fresh:
                fresh.write(data)
                fresh.flush()
                os.fsync(fresh.fileno())
            os.replace(name, file)
        except BaseException:
            os.unlink(name)
            raise
        folder = os.open(file.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # the new name, too, has to survive
        finally:
            os.close(folder)
    except OSError as error:
        raise PeersUnwritable(f"{file}: cannot be written: {error.strerror}") from error


def _table(overrides: PeerOverrides | AgentOverrides) -> dict[str, Any]:
    values = {f.name: getattr(overrides, f.name) for f in fields(overrides)}
    return {name: _toml(value) for name, value in values.items() if value is not None}


def _toml(value: Any) -> Any:
    if isinstance(value, AgentOverrides):
        return _table(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple):
        return list(value)
    return dict(value) if isinstance(value, Mapping) else value
