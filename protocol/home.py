"""Where things lie below a bridge's home: what bridge-supervisor and bridge-ctl must both know.

Names and rules only; nothing here touches the disk. The control socket has three neighbours in <home>/run:

lock            held (flock, exclusive) by the supervisor for as long as it lives
ctl-server.pub  the socket's public CURVE key, Z85 text
ctl-client.key  the operator's key pair, two lines of Z85 text: public, secret
sockets         only where <home>/run is too long for a Unix socket: a link to the folder that holds the sockets
"""

import sys
from collections.abc import Mapping
from pathlib import Path

APP = "bridge-supervisor"

RUN = "run"
LOCK = "lock"
CTL_SOCKET = "ctl.sock"
CTL_SERVER_KEY = "ctl-server.pub"
CTL_CLIENT_KEY = "ctl-client.key"
SOCKETS = "sockets"

SOCKET_PATH_BYTES = 107  # sun_path holds 108 with its closing zero (Linux; macOS has 104, see socket_fits)


def find_home(asked: str | None, environ: Mapping[str, str], user_home: Path, platform: str = sys.platform) -> Path:
    """The home in use: asked (--home), else $BRIDGE_HOME, else the user's state directory for this platform."""
    if asked:
        return Path(asked).expanduser().absolute()
    if environ.get("BRIDGE_HOME"):
        return Path(environ["BRIDGE_HOME"]).expanduser().absolute()
    if platform == "darwin":
        return user_home / "Library" / "Application Support" / APP
    state = environ.get("XDG_STATE_HOME", "")
    # The XDG specification: a relative path is to be ignored.
    base = Path(state) if state.startswith("/") else user_home / ".local" / "state"
    return base / APP


def socket_fits(path: Path, platform: str = sys.platform) -> bool:
    """May a Unix socket be bound at this path?"""
    limit = 103 if platform == "darwin" else SOCKET_PATH_BYTES
    return len(bytes(path)) <= limit
