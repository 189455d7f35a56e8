"""Here, and not beside the attacks, because pytest's main process reads only this one when the tests run in others."""

import os

import pytest

from tests.attacks import summary


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Of `-n auto`: most tests wait for processes of the bridge more than they work, and leave half of two cores idle."""
    cores = os.cpu_count() or 1
    return cores + cores // 2


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    summary.tell(terminalreporter)
