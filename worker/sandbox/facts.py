"""What the plan has to know of this machine and of the interpreter that runs us. One function, facts()."""

import contextlib
import functools
import os
import platform
import sys
import sysconfig

import msgspec

import protocol
import worker
from worker.sandbox import linux
from worker.sandbox.plan import DEVICES, ETC, SYSTEM_FOLDERS, Facts, is_below


@functools.cache
def facts() -> Facts:
    """Asked once: a zygote's answer is shared by all that it forks."""
    links = [(path, os.readlink(path).lstrip("/")) for path in SYSTEM_FOLDERS if os.path.islink(path)]
    system = [path for path in SYSTEM_FOLDERS if os.path.isdir(path) and not os.path.islink(path)]
    return Facts(
        euid=os.geteuid(),
        machine=platform.machine(),
        landlock_abi=linux.landlock_abi(),
        interpreter=_interpreter(),
        programs=(os.path.realpath(sys.executable),),
        system=(*system, *(path for path in (*DEVICES, *ETC) if os.path.exists(path))),
        links=tuple(links),
        loaders=_loaders(),
        notifies=linux.can_install_descriptors(),
    )


def _interpreter() -> tuple[str, ...]:
    """Folders that hold the interpreter, its libraries and our code; none that lies below another of them."""
    packages = [os.path.realpath(path) for package in (protocol, worker) for path in package.__path__]
    third_party = os.path.dirname(os.path.dirname(os.path.realpath(msgspec.__file__)))
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    folders = {
        sys.prefix,
        sys.base_prefix,
        sys.exec_prefix,
        third_party,
        *(sysconfig.get_path(name) for name in names),
        *packages,
    }
    folders = {folder for folder in folders if os.path.isdir(folder) and folder != "/"}
    return tuple(sorted(folder for folder in folders if not any(is_below(folder, other) for other in folders)))


def _loaders() -> tuple[str, ...]:
    """The dynamic loaders by their real paths: Landlock's EXECUTE is asked for them at every exec."""
    found: set[str] = set()
    for folder in ("/lib", "/lib64"):
        with contextlib.suppress(OSError):
            for name in os.listdir(folder):
                if name.startswith(("ld-linux", "ld-musl-")):
                    found.add(os.path.realpath(os.path.join(folder, name)))
    return tuple(sorted(found))
