"""Foreign bytes of every kind: the corpus that a coverage-guided fuzzer grew (fuzz.py), cut and spoilt, and random ones."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.chaos.fuzz import CORPUS, TARGETS

SOON_S = 5.0


@pytest.mark.parametrize("target", TARGETS)
def test_no_input_of_the_corpus_breaks_a_reader_or_holds_it_up(target: str) -> None:
    files = sorted((CORPUS / target).iterdir())
    assert files
    for file in files:
        data = file.read_bytes()
        for variant in (data, data[: len(data) // 2], data[1:], data * 3, data.replace(b'"', b"[")):
            began = time.process_time()

            TARGETS[target](variant)

            assert time.process_time() - began < SOON_S, file.name


@pytest.mark.parametrize("target", TARGETS)
@settings(max_examples=150, deadline=None)
@given(data=st.binary(max_size=400))
def test_no_bytes_break_a_reader(target: str, data: bytes) -> None:
    TARGETS[target](data)
