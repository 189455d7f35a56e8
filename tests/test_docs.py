"""The pages of docs/: the generated ones say everything that their tables hold, and Sphinx takes them all."""

import importlib.util
import shutil
import subprocess
import sys
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import ModuleType

import pytest

from protocol.ctl import VERBS
from supervisor.config import AT_START, Settings, waiting_for_a_start

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    """docs/ is no package: its pages are made by a file beside them."""
    spec = importlib.util.spec_from_file_location("docs_reference", ROOT / "docs" / "reference.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_every_setting_is_listed_once_with_a_meaning_and_a_type(reference: ModuleType) -> None:
    listed = [(one.section, one.name) for one in reference.settings()]
    sections = {f.name: getattr(Settings(), f.name) for f in fields(Settings)}
    declared = {(s, f.name) for s, value in sections.items() if is_dataclass(value) for f in fields(value)}

    assert declared <= set(listed)
    assert len(listed) == len(set(listed))
    assert [one for one in reference.settings() if not one.meaning or not one.type] == []
    assert {section for section, _ in listed} | set(reference.NAMED_BY_THE_OPERATOR) >= {
        name for name in sections if name not in {"peers", "peers_by_hand", "warnings", "file"}
    }


def test_the_page_of_settings_has_type_range_default_unit_and_what_reload_does(reference: ModuleType) -> None:
    page = reference.settings_page()

    assert "- **`concurrency`**: turns at once\\\n  integer, 1 to 64 · default `2` · reload: yes\n" in page
    assert "number, 0.001 to 604800 · seconds · default `10` · reload: at a start\n" in page
    assert 'text · default `"https://ilinkai.weixin.qq.com"` · reload: at a start' in page
    assert "one of `chat`, `readonly`, `workspace`, `full`" in page


def test_the_keys_read_at_a_start_exist_and_a_change_of_them_is_told() -> None:
    settings = Settings()

    assert waiting_for_a_start(settings, settings) == ()
    assert all(hasattr(getattr(settings, section), name) for section, name in (key.split(".") for key in AT_START))


def test_the_page_of_commands_has_every_verb_with_all_its_arguments(reference: ModuleType) -> None:
    page = reference.commands_page()

    for verb in VERBS:
        part = page.split(f"\n## {verb.name}\n")[1].split("\n## ")[0]
        assert all(argument.help in part for argument in verb.arguments)
        assert f"bridge-ctl {verb.name}" in part


@pytest.mark.second
@pytest.mark.skipif(importlib.util.find_spec("sphinx") is None, reason="Sphinx is not installed: scripts/docs does it")
def test_sphinx_takes_every_page_without_a_warning(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "docs", tmp_path / "docs", ignore=shutil.ignore_patterns("_build", "_generated"))
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "docs", "html"]

    done = subprocess.run(
        command, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False, timeout=100
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert "max_turns_per_hour" in (tmp_path / "html" / "_generated" / "settings.html").read_text()
