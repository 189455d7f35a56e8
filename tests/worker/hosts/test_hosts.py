"""The table of hosts."""

import subprocess
import sys
from pathlib import Path

import pytest

from protocol import agents
from worker import hosts

ROOT = Path(__file__).parents[3]


def test_the_table_names_the_hosts_that_settings_may_name() -> None:
    assert hosts.HOSTS.keys() == {agents.driver_of(name) for name in agents.HOSTS}


def test_an_unknown_host_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        hosts.make("nobody")
    with pytest.raises(KeyError):
        hosts.preload("nobody")


def test_echo_never_loads_the_library_of_another_host() -> None:
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import worker.turn; from worker import hosts; hosts.preload('echo'); hosts.make('echo')\n"
        "print([name for name in ('acp', 'pydantic') if name in sys.modules])\n"
        "hosts.preload('acp'); print('acp' in sys.modules)"
    )

    told = subprocess.run([sys.executable, "-I", "-c", program, str(ROOT)], capture_output=True, text=True, timeout=60)

    assert told.stdout.split("\n")[:2] == ["[]", "True"], told.stderr
