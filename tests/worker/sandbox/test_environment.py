"""worker/sandbox/environment.py, in a child of its own."""

import os
import stat
from pathlib import Path

from tests.attacks.sandboxed import outside
from worker.sandbox import environment


def test_variables_folder_and_umask_are_those_of_the_plan_and_temporary_files_have_a_place(tmp_path: Path) -> None:
    variables = {"HOME": str(tmp_path), "TMPDIR": str(tmp_path / "tmp")}

    def body() -> list[object]:
        os.environ["API_KEY"] = "secret"
        environment.apply(variables, folder=str(tmp_path))
        environment.apply(variables, folder=str(tmp_path))  # the folder is there the second time
        Path("made").touch()
        return [dict(os.environ), os.getcwd(), stat.S_IMODE(os.stat("made").st_mode), os.path.isdir("tmp")]

    assert outside(body).value == [variables, str(tmp_path), 0o600, True]


def test_a_folder_that_cannot_be_entered_is_told(tmp_path: Path) -> None:
    missing = str(tmp_path / "none")

    assert outside(lambda: environment.apply({"TMPDIR": missing}, folder=missing)).refused
