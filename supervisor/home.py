"""The bridge's home on disk: every path in it, made with the right modes.

In comes the path that protocol.home found; out go paths. 0700 throughout; as root the home and the parents of the peers'
folders are 0711, since each peer's own uid has to pass through them (the folders of one peer belong to the pool).
"""

import hashlib
import os
import re
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path

from protocol import home as names
from protocol.errors import BridgeError
from protocol.ids import label

_PREFIX_CHARS = 24


class HomeError(BridgeError):
    """The home cannot be used; the line names the path and what would mend it."""


@dataclass(frozen=True, slots=True)
class Home:
    """One bridge's directory. path is absolute."""

    path: Path

    @property
    def bridge_toml(self) -> Path:
        return self.path / "bridge.toml"

    @property
    def peers_toml(self) -> Path:
        return self.path / "peers.toml"

    @property
    def credentials(self) -> Path:
        return self.path / "credentials.json"

    @property
    def journal(self) -> Path:
        return self.path / "state.db"

    @property
    def audit(self) -> Path:
        return self.path / "audit.jsonl"

    @property
    def log(self) -> Path:
        """Written with --detach only."""
        return self.path / "bridge.log"

    @property
    def sessions(self) -> Path:
        return self.path / "sessions"

    @property
    def workspaces(self) -> Path:
        return self.path / "workspaces"

    @property
    def media(self) -> Path:
        return self.path / "media"

    @property
    def outgoing(self) -> Path:
        """Files that wait to be sent; no worker reaches it."""
        return self.path / "outgoing"

    @property
    def run(self) -> Path:
        return self.path / names.RUN

    @property
    def lock(self) -> Path:
        return self.run / names.LOCK

    @property
    def sockets(self) -> Path:
        """Where Unix sockets are bound: run, or the short folder its link names. Known after make_sockets()."""
        link = self.run / names.SOCKETS
        return Path(os.readlink(link)) if link.is_symlink() else self.run

    @property
    def ctl_socket(self) -> Path:
        return self.sockets / names.CTL_SOCKET

    def session_dir(self, account: str, peer: str) -> Path:
        return self.sessions / peer_dirname(account, peer)

    def workspace_dir(self, account: str, peer: str) -> Path:
        return self.workspaces / peer_dirname(account, peer)

    def media_dir(self, account: str, peer: str) -> Path:
        return self.media / peer_dirname(account, peer)

    def make(self) -> None:
        """Make all folders that are missing and set their modes; the home's lock can be taken after it.

        raises HomeError
        """
        shared = 0o711 if os.geteuid() == 0 else 0o700
        for folder, mode in (
            (self.path, shared),
            (self.run, 0o700),
            (self.sessions, shared),
            (self.workspaces, shared),
            (self.media, shared),
            (self.outgoing, 0o700),
        ):
            _make_folder(folder, mode)

    def make_sockets(self, runtime_dir: str | None) -> None:
        """Give the sockets a folder short enough. Call it while holding the home's lock.

        Names longer than CTL_SOCKET must not be bound there. The link is kept from start to start, so that killed
        supervisors leave no more than one such folder behind.

        runtime_dir   $XDG_RUNTIME_DIR, tried before the temp directory
        raises        HomeError
        """
        link = self.run / names.SOCKETS
        if names.socket_fits(self.run / names.CTL_SOCKET):
            link.unlink(missing_ok=True)
            return
        if link.is_symlink() and _is_private(Path(os.readlink(link))):
            return
        base = runtime_dir if runtime_dir and os.path.isdir(runtime_dir) else tempfile.gettempdir()
        try:
            folder = Path(tempfile.mkdtemp(prefix="bridge-", dir=base))
        except OSError as error:
            raise HomeError(f"{base}: cannot hold the sockets of {self.path}: {error.strerror}") from error
        if not names.socket_fits(folder / names.CTL_SOCKET):
            folder.rmdir()
            raise HomeError(f"{folder}: too long for a Unix socket; choose a shorter --home or TMPDIR")
        link.unlink(missing_ok=True)
        link.symlink_to(folder)


def peer_dirname(account: str, peer: str) -> str:
    """A folder name for one peer of one account: readable, safe everywhere, never shared by two of them."""
    account_bytes, peer_bytes = (name.encode("utf-8", "surrogatepass") for name in (account, peer))
    # The length keeps ("a", "bc") and ("ab", "c") apart.
    digest = hashlib.sha256(b"%d:" % len(account_bytes) + account_bytes + peer_bytes).hexdigest()[:20]
    prefix = re.sub(r"[^A-Za-z0-9_]+", "-", label(peer))[:_PREFIX_CHARS].strip("-") or "peer"
    return f"{prefix}-{digest}"


def _make_folder(folder: Path, mode: int) -> None:
    try:
        folder.mkdir(mode=mode, parents=True, exist_ok=True)
        found = folder.lstat()
        if stat.S_ISLNK(found.st_mode) and folder.name == names.RUN:
            raise HomeError(f"{folder}: is a link; remove it")
        if folder.stat().st_uid != os.geteuid():
            raise HomeError(f"{folder}: belongs to another user; choose another --home")
        if stat.S_IMODE(folder.stat().st_mode) != mode:
            folder.chmod(mode)
        if os.statvfs(folder).f_flag & os.ST_RDONLY:
            raise HomeError(f"{folder}: lies on a disk that is read-only")
        if not os.access(folder, os.W_OK | os.X_OK):
            raise HomeError(f"{folder}: cannot be written to; check its owner and mode")
    except (FileExistsError, NotADirectoryError) as error:
        raise HomeError(f"{folder}: not a folder; move it away or choose another --home") from error
    except OSError as error:
        raise HomeError(f"{folder}: cannot be made: {error.strerror}; choose another --home") from error


def _is_private(folder: Path) -> bool:
    try:
        found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) == 0o700
