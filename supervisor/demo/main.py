"""`bridge-supervisor demo`: the simulated WeChat in a process of its own, and the real bridge in front of it.

The bridge runs as it always does: same processes, same sandbox, a home of its own that goes when the demo ends. One
sign-in is kept open all the time, so that the page always has a code to scan; whatever the page shows came over HTTP.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from protocol.agents import HOSTS
from supervisor.demo import model as model_server

EXIT_USAGE = 2
START_S = 20.0

CTL = "from supervisor.console.main import main; main()"


def run(*, port: int, agent: str, log_level: str) -> int:
    """Until Ctrl-C. Returns the supervisor's exit code."""
    if agent not in HOSTS or HOSTS[agent].needs_command or HOSTS[agent].command:
        ready = ", ".join(name for name, facts in HOSTS.items() if not (facts.needs_command or facts.command))
        print(f"bridge-supervisor demo: --agent {agent}: choose one of {ready}", file=sys.stderr)
        return EXIT_USAGE
    from supervisor import app

    with _home() as home, _simulated_wechat(port) as service:
        _settings(home, service, agent)
        announcer = _Announcer(home, service["url"])
        try:
            return app.start(
                home=str(home),
                config_file=None,
                log_level=log_level,
                detach=app.Detach.NO,
                announcer=announcer,
                locks=home,
            )
        finally:
            announcer.close()


@contextlib.contextmanager
def _home() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="bridge-demo-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _simulated_wechat(port: int) -> Iterator[dict[str, str]]:
    """It ends when our end of its standard input does, however we end."""
    process = subprocess.Popen(
        [sys.executable, "-m", "supervisor.demo.server", "--port", str(port), "--with-stdin"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is for the bridge, which closes in order first
        cwd=Path(__file__).resolve().parent.parent.parent,
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line:
            raise SystemExit(f"bridge-supervisor demo: the simulated WeChat did not start on port {port}")
        yield json.loads(line)
    finally:
        process.stdin.close()
        try:
            process.wait(START_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


# What the demo says of its agent, above the phone.
_NOTES = {
    "echo": "The agent here is “echo”: it answers with your own words.",
    "builtin": "The model here is a script of the demo's own: no key, no network. Try: write, run, plan, ask.",
}
KEY = "BRIDGE_DEMO_KEY"


def _settings(home: Path, service: dict[str, str], agent: str) -> None:
    model = ""
    if agent == "builtin":
        os.environ[KEY] = "nobody checks it"  # the gateway wants one, as any model server does
        model = f'model = "openai-compatible:demo"\nbase_url = "{service["url"]}{model_server.PATH}"\napi_key_env = "{KEY}"\n'
    (home / "bridge.toml").write_text(
        f'[wechat]\nbase_url = "{service["url"]}"\ncdn_base_url = "{service["cdn_url"]}"\n'
        f'bot_agent = "bridge-supervisor-demo/0.1.0"\n\n[agent]\nhost = "{agent}"\n{model}',
        encoding="utf-8",
    )
    note = json.dumps({"note": _NOTES[agent]} if agent in _NOTES else {})
    request = urllib.request.Request(
        f"{service['url']}/sim/settings",
        data=note.encode(),
        method="PATCH",
        headers={"content-type": "application/json"},
    )
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=START_S):
        pass


class _Announcer:
    """Says where the page is once the bridge is ready, and keeps a sign-in open from then on."""

    def __init__(self, home: Path, url: str) -> None:
        self._home = home
        self._url = url
        self._over = threading.Event()
        self._login: subprocess.Popen[bytes] | None = None
        self._thread: threading.Thread | None = None

    def ready(self) -> None:
        home = f"--home {self._home}"
        print(f"The phone:        {self._url}/", flush=True)
        print(f"The operator:     bridge-ctl {home} status", flush=True)
        print("Ctrl-C ends the demo; nothing of it is kept.", flush=True)
        self._thread = threading.Thread(target=self._keep_a_login_open, name="demo logins", daemon=True)
        self._thread.start()

    def failed(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    def close(self) -> None:
        self._over.set()
        if self._login is not None:
            with contextlib.suppress(ProcessLookupError):
                self._login.terminate()
        if self._thread is not None:
            self._thread.join(START_S)

    def _keep_a_login_open(self) -> None:
        """The first scan makes the operator's account, each further person's a guest's."""
        while not self._over.is_set():
            self._login = subprocess.Popen(
                [sys.executable, "-c", CTL, "--home", str(self._home), "login"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parent.parent.parent)},
            )
            self._login.wait()
            self._over.wait(0.2)
