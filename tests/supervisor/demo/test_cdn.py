"""The CDN's cipher against the computed vectors, and its tickets."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.demo.cdn import (
    KeyForm,
    Shelves,
    Stored,
    decrypt,
    encrypt,
    md5_hex,
    padded_size,
    read_key,
    spoil_padding,
    write_key,
)
from supervisor.demo.names import Mint
from supervisor.demo.state import quoted


def test_the_cipher_agrees_with_every_vector(vectors: dict[str, Any]) -> None:
    key = bytes.fromhex(vectors["aes_128_ecb_pkcs7"]["key_hex"])
    for case in vectors["aes_128_ecb_pkcs7"]["cases"]:
        plain, secret = bytes.fromhex(case["plaintext_hex"]), bytes.fromhex(case["ciphertext_hex"])

        assert encrypt(key, plain) == secret, case["name"]
        assert decrypt(key, secret) == plain, case["name"]
        assert (padded_size(len(plain)), md5_hex(plain)) == (case["filesize"], case["rawfilemd5"]), case["name"]


def test_keys_are_read_in_both_forms_and_nothing_else(vectors: dict[str, Any]) -> None:
    for case in vectors["aes_key_parse"]:
        if case.get("error"):
            with pytest.raises(ValueError, match=r"\w"):
                read_key(case["in"])
        else:
            assert read_key(case["in"])[0].hex() == case["key_hex"], case["name"]


def test_keys_are_written_as_the_vectors_spell_them(vectors: dict[str, Any]) -> None:
    for group in (vectors["aes_128_ecb_pkcs7"], vectors["aes_key_forms_second_key"]):
        key = bytes.fromhex(group["key_hex"])

        assert write_key(key, KeyForm.RAW) == group["aes_key_base64_of_raw16"]
        assert write_key(key, KeyForm.HEX) == group["aes_key_base64_of_hex32"]


def test_padded_sizes_agree_with_the_vectors(vectors: dict[str, Any]) -> None:
    assert [padded_size(v["plain"]) for v in vectors["padded_size"]] == [v["cipher"] for v in vectors["padded_size"]]


def test_addresses_are_encoded_as_the_vectors_spell_them(vectors: dict[str, Any]) -> None:
    download, upload = vectors["cdn_urls"]

    assert quoted(download["encrypt_query_param"]) in download["url"]
    assert quoted(upload["upload_param"]) in upload["url"]


@given(plain=st.binary(max_size=200), key=st.binary(min_size=16, max_size=16))
def test_what_is_encrypted_comes_back(plain: bytes, key: bytes) -> None:
    secret = encrypt(key, plain)

    assert len(secret) == padded_size(len(plain))
    assert decrypt(key, secret) == plain


@given(plain=st.binary(max_size=64), key=st.binary(min_size=16, max_size=16))
def test_spoiled_padding_is_never_accepted(plain: bytes, key: bytes) -> None:
    spoiled = spoil_padding(Stored(encrypt(key, plain), key))

    with pytest.raises(ValueError, match="padding"):
        decrypt(key, spoiled)


def test_an_upload_must_be_what_was_announced() -> None:
    shelves = Shelves(Mint(random.Random(1)))
    ticket = shelves.announce("f" * 32, 16)

    assert shelves.upload(ticket, "f" * 32, b"x" * 15) is None
    assert shelves.upload(ticket, "0" * 32, b"x" * 16) is None
    assert shelves.upload("another", "f" * 32, b"x" * 16) is None
    download = shelves.upload(ticket, "f" * 32, b"x" * 16)

    assert download is not None
    assert shelves.fetch(download) == Stored(b"x" * 16, None)


def test_every_ticket_needs_encoding_in_a_url() -> None:
    mint = Mint(random.Random(1))

    assert all({"+", "/", "="} <= set(mint.ticket()) for _ in range(50))
