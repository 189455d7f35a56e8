"""Environment: folder, umask and variables that a worker starts with. One function, apply()."""

import contextlib
import os
from collections.abc import Mapping


def apply(variables: Mapping[str, str], *, folder: str) -> None:
    """raises OSError when the folder cannot be entered

    The block that this process was started with stays in its memory (/proc/self/environ): the zygote's, which holds
    nothing but PATH and LANG.
    """
    os.chdir(folder)
    os.umask(0o077)
    os.environ.clear()
    os.environ.update(variables)
    with contextlib.suppress(FileExistsError):
        os.mkdir(variables["TMPDIR"], 0o700)
