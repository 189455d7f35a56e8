"""Sphinx: scripts/docs. The two reference pages are written anew at every build, so they cannot be out of date."""

import sys
from pathlib import Path

DOCS = Path(__file__).parent
sys.path[:0] = [str(DOCS), str(DOCS.parent)]

import reference  # noqa: E402 - lies beside this file, which Sphinx does not put on the path

reference.write(DOCS / "_generated")

project = "bridge-supervisor"
extensions = ["myst_parser"]
html_theme = "furo"
html_title = project
exclude_patterns = ["_build"]
myst_heading_anchors = 3
