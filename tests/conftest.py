"""Here, and not beside the attacks, because pytest's main process reads only this one when the tests run in others."""

import pytest

from tests.attacks import summary


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    summary.tell(terminalreporter)
