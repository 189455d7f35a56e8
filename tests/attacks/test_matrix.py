"""The matrix is no wish list: its tests exist, and no shape of worker lacks every layer of a row."""

import ast
import functools
from pathlib import Path

import pytest

from tests.attacks.matrix import MATRIX, Row
from tests.attacks.sandboxed import SHAPES

TESTS = Path(__file__).parents[1]


@functools.cache
def functions(file: str) -> frozenset[str]:
    tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


@pytest.mark.parametrize("row", MATRIX, ids=lambda row: row.attack)
def test_every_row_has_tests_that_exist(row: Row) -> None:
    assert row.tests
    for test in row.tests:
        file, _, name = test.partition("::")
        assert name in functions(file), test


@pytest.mark.parametrize("row", [row for row in MATRIX if row.layers], ids=lambda row: row.attack)
def test_every_shape_of_worker_has_a_layer_against_every_row(row: Row) -> None:
    assert [shape for shape, layers in SHAPES.items() if not set(row.layers) & set(layers)] == []
