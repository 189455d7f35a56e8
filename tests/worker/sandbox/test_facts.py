"""worker/sandbox/facts.py, on this machine."""

import os
import sys
import sysconfig
from pathlib import Path

import worker
from worker.sandbox.facts import facts
from worker.sandbox.plan import is_below


def covered(path: str) -> bool:
    return any(path == folder or is_below(path, folder) for folder in facts().interpreter)


def test_the_interpreter_its_libraries_and_our_code_are_covered_and_the_rest_of_the_checkout_is_not() -> None:
    for path in (os.__file__, sys.prefix, sysconfig.get_path("purelib"), *worker.__path__):
        assert covered(os.path.realpath(path)) or covered(path), path
    assert not covered(str(Path(worker.__path__[0]).parent / "supervisor"))
    assert not covered("/")


def test_programs_and_loaders_are_real_files() -> None:
    for path in (*facts().programs, *facts().loaders):
        assert os.path.isfile(path) and os.path.realpath(path) == path
    assert facts().loaders


def test_links_lead_below_the_new_root_and_system_paths_exist() -> None:
    for path, target in facts().links:
        assert not target.startswith("/") and os.path.samefile(path, "/" + target)
    assert all(os.path.exists(path) for path in facts().system)
