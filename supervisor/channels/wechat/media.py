"""The cipher of WeChat's CDN, and where an announced medium lies. Pure: bytes in, bytes out.

In: Media.wire, the item's own JSON as the journal keeps it; plain or ciphered bytes in pieces. Out: address and key;
bytes, a piece at a time, so that a file never has to fit into memory. Neighbours: wire.py has the addresses and key forms.
"""

import base64
import re
from dataclasses import dataclass

from cryptography.hazmat.primitives import padding
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import ECB

from supervisor.channels.base import MediaUnreadable
from supervisor.channels.wechat import wire

BLOCK_BITS = 128
KEY_BYTES = 16


@dataclass(frozen=True, slots=True)
class Source:
    """Where a medium's bytes lie. key None: they are not enciphered (a picture without any key)."""

    url: str
    key: bytes | None


def source(item: bytes, *, cdn_base_url: str, trusted_hosts: tuple[str, ...]) -> Source:
    """What an announced item points to.

    A complete address goes before one that we build, and only to the CDN we are configured with or a trusted host. A
    picture's own `aeskey` goes before the one beside the address, which is wrong at times.

    raises MediaUnreadable: nothing is saved then, least of all ciphertext under the file's name (B-074)
    """
    member, is_image = _member(item)
    medium = member.get("media")
    medium = medium if isinstance(medium, dict) else {}
    return Source(_address(medium, cdn_base_url, trusted_hosts), _key(member, medium, is_image))


def outbound_key(key: bytes) -> str:
    """A key as phones can read it: base64 of its hex digits. Of the 16 bytes themselves, pictures stay grey."""
    return base64.b64encode(key.hex().encode()).decode()


class Encipher:
    """AES-128-ECB with PKCS#7: the network's choice. An empty file becomes one block."""

    def __init__(self, key: bytes) -> None:
        self._pad = padding.PKCS7(BLOCK_BITS).padder()
        self._cipher = Cipher(AES(key), ECB()).encryptor()

    def feed(self, data: bytes) -> bytes:
        return self._cipher.update(self._pad.update(data))

    def finish(self) -> bytes:
        return self._cipher.update(self._pad.finalize()) + self._cipher.finalize()


class Decipher:
    """The way back. Only `finish` can tell that the key was the right one: until then nothing may be used."""

    def __init__(self, key: bytes) -> None:
        self._cipher = Cipher(AES(key), ECB()).decryptor()
        self._strip = padding.PKCS7(BLOCK_BITS).unpadder()

    def feed(self, data: bytes) -> bytes:
        return self._strip.update(self._cipher.update(data))

    def finish(self) -> bytes:
        """raises MediaUnreadable: cut short, or another key's"""
        try:
            return self._strip.update(self._cipher.finalize()) + self._strip.finalize()
        except ValueError:
            raise MediaUnreadable("the bytes do not fit their key, or are cut short") from None


def _member(item: bytes) -> tuple[dict[str, object], bool]:
    try:
        value = wire.from_json(item)
    except ValueError:
        value = None
    if isinstance(value, dict):
        for kind, name in wire.MEMBERS.items():
            member = value.get(name)
            if kind != wire.TEXT and isinstance(member, dict):
                return member, kind == wire.IMAGE
    raise MediaUnreadable("the message names nothing to fetch")


def _address(medium: dict[str, object], cdn_base_url: str, trusted_hosts: tuple[str, ...]) -> str:
    full, param = medium.get("full_url"), medium.get("encrypt_query_param")
    if isinstance(full, str) and full.strip():
        url = full.strip()
        base = url.partition("?")[0]
        if not wire.may_move_to(base, own_base_url=cdn_base_url, trusted_hosts=trusted_hosts):
            raise MediaUnreadable("its address is not on a trusted host")
        return url
    if isinstance(param, str) and param:
        return wire.download_url(cdn_base_url, param)
    raise MediaUnreadable("it has no address")


def _key(member: dict[str, object], medium: dict[str, object], is_image: bool) -> bytes | None:
    own, beside = member.get("aeskey"), medium.get("aes_key")
    if is_image and isinstance(own, str) and re.fullmatch(r"[0-9A-Fa-f]{32}", own):
        return bytes.fromhex(own)
    if isinstance(beside, str) and beside.strip():
        try:
            return wire.aes_key(beside)
        except ValueError:
            raise MediaUnreadable("its key is no key") from None
    if is_image:
        return None
    raise MediaUnreadable("it has no key")
