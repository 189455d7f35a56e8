"""The CDN's cipher against vectors, and which key and address an announced medium has."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.channels.wechat import wire
from supervisor.channels.wechat.media import Decipher, Encipher, MediaUnreadable, Source, outbound_key, source

VECTORS = json.loads((Path(__file__).parents[3] / "data" / "ilink-vectors.json").read_text())
AES = VECTORS["aes_128_ecb_pkcs7"]
KEY = bytes.fromhex(AES["key_hex"])
CDN = "https://novac2c.cdn.weixin.qq.com/c2c"
BESIDE = AES["aes_key_base64_of_hex32"]


def whole(machine: Encipher | Decipher, data: bytes, *, step: int = 7) -> bytes:
    return b"".join(machine.feed(data[at : at + step]) for at in range(0, len(data), step)) + machine.finish()


@pytest.mark.parametrize("case", AES["cases"], ids=lambda case: case["name"])
def test_the_cipher_is_the_networks_own(case: dict[str, Any]) -> None:
    plain, secret = bytes.fromhex(case["plaintext_hex"]), bytes.fromhex(case["ciphertext_hex"])

    assert whole(Encipher(KEY), plain) == secret
    assert whole(Decipher(KEY), secret) == plain
    assert len(secret) == wire.padded_size(len(plain)) == case["filesize"]


@given(st.binary(max_size=200), st.binary(min_size=16, max_size=16), st.integers(1, 40))
def test_any_bytes_survive_in_any_pieces(data: bytes, key: bytes, step: int) -> None:
    assert whole(Decipher(key), whole(Encipher(key), data, step=step), step=step) == data


@pytest.mark.parametrize("spoil", [lambda secret: secret[:-1], lambda secret: secret[:-16], lambda secret: b""])
def test_bytes_cut_short_are_noticed(spoil: Any) -> None:
    secret = whole(Encipher(KEY), b"x" * 33)

    with pytest.raises(MediaUnreadable):
        whole(Decipher(KEY), spoil(secret))


def test_another_files_key_is_noticed() -> None:
    with pytest.raises(MediaUnreadable):
        whole(Decipher(b"another key 16 b"), whole(Encipher(KEY), b"x" * 33))


def test_an_outbound_key_is_spelled_in_hex() -> None:
    assert outbound_key(KEY) == AES["aes_key_base64_of_hex32"]


def found(item: dict[str, Any], *, cdn: str = CDN) -> Source:
    return source(wire.to_json(item), cdn_base_url=cdn, trusted_hosts=("weixin.qq.com",))


def file(**media: Any) -> dict[str, Any]:
    return {"type": 4, "file_item": {"media": media, "file_name": "a.txt"}}


def test_a_ticket_and_a_key_make_a_source() -> None:
    assert found(file(encrypt_query_param="a+b", aes_key=BESIDE)) == Source(
        f"{CDN}/download?encrypted_query_param=a%2Bb", KEY
    )


def test_a_pictures_own_key_goes_before_the_one_beside_the_address() -> None:
    media = {"encrypt_query_param": "p", "aes_key": VECTORS["aes_key_forms_second_key"]["aes_key_base64_of_raw16"]}

    own = found({"type": 2, "image_item": {"aeskey": AES["key_hex"], "media": media}})
    beside = found({"type": 2, "image_item": {"media": media}})
    plain = found({"type": 2, "image_item": {"media": {"encrypt_query_param": "p"}}})

    assert own.key == KEY
    assert beside.key == bytes.fromhex(VECTORS["aes_key_forms_second_key"]["key_hex"])
    assert plain.key is None


@pytest.mark.parametrize("key", [None, "", "00112233445566778899aabbccddeeff", "!!", 7])
def test_b074_a_file_without_a_usable_key_is_unreadable(key: object) -> None:
    with pytest.raises(MediaUnreadable):
        found(file(encrypt_query_param="p", aes_key=key))


@pytest.mark.parametrize("item", [b"", b"5", b"{}", b'{"type":4}', b'{"type":4,"file_item":{"media":5}}', b"\xff"])
def test_an_item_that_points_nowhere_is_unreadable(item: bytes) -> None:
    with pytest.raises(MediaUnreadable):
        source(item, cdn_base_url=CDN, trusted_hosts=())


@pytest.mark.parametrize(
    ("url", "taken"),
    [
        (f"{CDN}/download?x=1", True),
        ("https://other.weixin.qq.com/d?x=a%2Fb", True),
        ("http://novac2c.cdn.weixin.qq.com/c2c/download?x=1", False),
        ("https://evil.example/?weixin.qq.com", False),
        ("https://weixin.qq.com@evil.example/", False),
        ("http://127.0.0.1:80/latest", False),
    ],
)
def test_a_complete_address_is_used_only_on_trusted_hosts(url: str, taken: bool) -> None:
    item = file(full_url=f" {url} ", encrypt_query_param="p", aes_key=BESIDE)

    if taken:
        assert found(item).url == url
    else:
        with pytest.raises(MediaUnreadable):
            found(item)
    assert found(file(full_url="http://127.0.0.1:9/x?y", aes_key=BESIDE), cdn="http://127.0.0.1:8/c2c").key == KEY
