"""The rules that keep the rooms apart: who may import whom, what pure code may touch, and that each module has its test."""

import ast
import functools
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
OURS = ("protocol", "supervisor", "worker")

PURE_MODULES = {
    "supervisor.notices",
    "supervisor.channels.base",
    "supervisor.channels.wechat.wire",
    "worker.sandbox.plan",
}
IMPURE = {
    *("asyncio", "os", "time", "random", "secrets", "logging", "socket", "subprocess", "threading", "multiprocessing"),
    *("signal", "select", "selectors", "shutil", "tempfile", "sqlite3", "fcntl", "resource", "ctypes", "io", "glob"),
}
CONSOLE_LIBRARIES = {"zmq", "rich", "segno", "msgspec", "textual"}

READS_ENVIRONMENT = {
    "supervisor.config",
    "supervisor.console.main",  # bridge-ctl has no settings
    "supervisor.demo.main",  # hands all of it on to the bridge that it starts
}

# Modules whose promises are tested as a whole by another file.
TESTED_ELSEWHERE: dict[str, str] = {
    "supervisor.accounts": "tests/promises/test_accounts.py",
    "supervisor.app": "tests/promises/test_answering.py",
    "supervisor.channels.base": "tests/supervisor/channels/wechat/test_client.py",
    "supervisor.closing": "tests/promises/test_shutdown.py",
    "supervisor.console.feed": "tests/supervisor/console/test_screen.py",
    "supervisor.conversations": "tests/promises/test_answering.py",
    "supervisor.ctl": "tests/promises/test_accounts.py",
    "supervisor.demo.main": "tests/promises/test_the_demo.py",
    "supervisor.peers": "tests/promises/test_admission.py",
    "supervisor.scheduler": "tests/promises/test_answering.py",
    "supervisor.start": "tests/promises/test_supervisor_death.py",
    "worker.hosts.builtin.history": "tests/worker/hosts/builtin/test_session.py",
    "worker.hosts.builtin.model": "tests/worker/hosts/builtin/test_session.py",
    "worker.hosts.acp.transport": "tests/worker/hosts/acp/test_session.py",
    "supervisor.upkeep": "tests/promises/test_keeping_and_forgetting.py",
    "supervisor.status": "tests/promises/test_answering.py",
}


@dataclass(frozen=True)
class Module:
    name: str
    path: Path

    @functools.cached_property
    def tree(self) -> ast.Module:
        """Not before somebody asks: each process that runs tests imports this file."""
        return ast.parse(self.path.read_text(encoding="utf-8"), str(self.path))

    @property
    def room(self) -> str:
        return self.name.split(".")[0]

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"

    @property
    def does_something(self) -> bool:
        """Is there a function with a body of its own? Plain values and interfaces have nothing to test."""
        return any(
            isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and not all(map(says_nothing, node.body))
            for node in ast.walk(self.tree)
        )

    @property
    def is_pure(self) -> bool:
        return ".core." in f"{self.name}." or self.name in PURE_MODULES

    def imports(self) -> Iterator[str]:
        """Every module imported anywhere in the file, also inside functions, as absolute dotted names."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{self.name}: imports are absolute"
                assert node.module is not None
                # `from supervisor import app` names a module too.
                yield node.module
                yield from (f"{node.module}.{alias.name}" for alias in node.names)


def says_nothing(statement: ast.stmt) -> bool:
    """A docstring, `...` or `raise NotImplementedError`."""
    return isinstance(statement, ast.Pass) or (
        isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    )


def module_at(path: Path) -> Module:
    parts = path.relative_to(ROOT).with_suffix("").parts
    name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    return Module(name, path)


MODULES = [module_at(path) for room in OURS for path in sorted((ROOT / room).rglob("*.py"))]
NAMES = {module.name for module in MODULES}
all_modules = pytest.mark.parametrize("module", MODULES, ids=lambda module: module.name)


def ours(module: Module) -> set[str]:
    return {name for name in module.imports() if name in NAMES}


@all_modules
def test_supervisor_and_worker_share_nothing_but_the_protocol(module: Module) -> None:
    allowed = {"protocol": {"protocol"}, "supervisor": {"supervisor", "protocol"}, "worker": {"worker", "protocol"}}
    # The program's entry checks that no other package hides one of ours, and so has to name all three.
    entry = {"worker"} if module.name == "supervisor.__main__" else set()

    foreign = {name for name in ours(module) if name.split(".")[0] not in allowed[module.room] and name not in entry}

    assert not foreign


@all_modules
def test_the_protocol_knows_the_standard_library_and_msgspec_alone(module: Module) -> None:
    if module.room != "protocol":
        return

    tops = {name.split(".")[0] for name in module.imports()}

    assert tops <= {"protocol", "msgspec", *sys.stdlib_module_names}


@all_modules
def test_pure_code_decides_without_clock_disk_or_network(module: Module) -> None:
    if not module.is_pure:
        return

    imported = set(module.imports())

    assert not {name.split(".")[0] for name in imported} & IMPURE
    shells = {name for name in ours(module) if name.split(".")[0] != "protocol"}
    pure = {other.name for other in MODULES if other.is_pure or (other.is_package and not other.does_something)}
    assert shells <= pure


@all_modules
def test_the_console_knows_the_protocol_alone(module: Module) -> None:
    if not module.name.startswith("supervisor.console"):
        return

    tops = {name.split(".")[0] for name in module.imports()}
    assert tops <= {"protocol", "supervisor", *CONSOLE_LIBRARIES, *sys.stdlib_module_names}
    rooms = {name for name in ours(module) if name.startswith("supervisor.")}
    assert all(name.startswith("supervisor.console") for name in rooms)


@all_modules
def test_the_simulated_wechat_shares_the_wire_types_and_never_the_client(module: Module) -> None:
    if not module.name.startswith("supervisor.demo"):
        return

    channels = {name for name in ours(module) if name.startswith("supervisor.channels.")}

    assert channels <= {"supervisor.channels.base", "supervisor.channels.wechat", "supervisor.channels.wechat.wire"}


def siblings(parent: str) -> set[str]:
    """The channels of supervisor.channels, the hosts of worker.hosts and so on; interfaces and tables are none."""
    shared = {"base", "plan", "linux", "program", "lines", "pictures", "tasks"}  # the latter four: for any host
    depth = parent.count(".") + 1
    below = {name.split(".")[depth] for name in NAMES if name.startswith(f"{parent}.")}
    return {f"{parent}.{name}" for name in below - shared}


@pytest.mark.parametrize("parent", ["supervisor.channels", "worker.hosts"])
def test_a_channel_or_host_never_imports_its_siblings(parent: str) -> None:
    for one in siblings(parent):
        inside = [module for module in MODULES if f"{module.name}.".startswith(f"{one}.")]
        for module in inside:
            others = {
                name
                for name in ours(module)
                for sibling in siblings(parent) - {one}
                if f"{name}.".startswith(f"{sibling}.")
            }
            assert not others, module.name


@all_modules
def test_only_config_and_bridge_ctl_read_the_environment(module: Module) -> None:
    if module.name in READS_ENVIRONMENT or module.room == "worker":
        return  # a worker's environment is made by its nanny

    reads = [
        node.lineno
        for node in ast.walk(module.tree)
        if (isinstance(node, ast.Attribute) and node.attr in ("environ", "environb", "getenv"))
        or (isinstance(node, ast.alias) and node.name in ("environ", "getenv"))
    ]

    assert not reads


@all_modules
def test_no_module_is_called_utils_and_every_one_says_what_it_is_for(module: Module) -> None:
    assert not {"utils", "util", "helpers", "common", "misc"} & set(module.name.split("."))
    assert module.is_package or ast.get_docstring(module.tree)


@all_modules
def test_every_module_has_its_test(module: Module) -> None:
    """tests/ mirrors the source, file for file."""
    if not module.does_something or module.name in TESTED_ELSEWHERE:
        return
    folder = ROOT / "tests" / module.path.relative_to(ROOT).parent
    name = module.path.parent.name if module.is_package else module.path.stem.strip("_")

    assert (folder / f"test_{name}.py").exists()


def test_no_exception_to_the_rules_has_outlived_its_reason() -> None:
    assert set(TESTED_ELSEWHERE) <= NAMES
    assert all((ROOT / test).exists() for test in TESTED_ELSEWHERE.values())
    assert READS_ENVIRONMENT <= NAMES
    assert PURE_MODULES <= NAMES


def test_the_folders_of_tests_are_no_packages() -> None:
    """A tests/supervisor/__init__.py would stand before supervisor/ on the path."""
    assert not list((ROOT / "tests").rglob("__init__.py"))
