"""The simulated CDN's cipher and shelves: what was announced, what was uploaded, what can be fetched. No I/O.

In: plaintext a person attaches, ciphertext a client uploads. Out: tickets, and bytes for them. ilink.py serves it over
HTTP, state.py opens what a bot sent with the key that came along, as a phone does.
"""

import base64
import binascii
import hashlib
import re
from dataclasses import dataclass, field
from enum import Enum

from cryptography.hazmat.primitives import padding
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import ECB

from supervisor.demo.names import Mint

_HEX32 = re.compile(r"[0-9a-fA-F]{32}\Z")
BLOCK_BYTES = 16


class KeyForm(Enum):
    """How `aes_key` spells its 16 bytes. Phones open only what a bot sent in HEX form."""

    RAW = "base64 of the 16 bytes"
    HEX = "base64 of the 32 hex characters"


def padded_size(plain_bytes: int) -> int:
    return (plain_bytes // BLOCK_BYTES + 1) * BLOCK_BYTES


def encrypt(key: bytes, plain: bytes) -> bytes:
    """AES-128-ECB with PKCS#7, the service's choice and not ours."""
    pad = padding.PKCS7(8 * BLOCK_BYTES).padder()
    cipher = Cipher(AES(key), ECB()).encryptor()
    return cipher.update(pad.update(plain) + pad.finalize()) + cipher.finalize()


def decrypt(key: bytes, secret: bytes) -> bytes:
    """raises ValueError when the length or the padding is wrong"""
    cipher = Cipher(AES(key), ECB()).decryptor()
    strip = padding.PKCS7(8 * BLOCK_BYTES).unpadder()
    return strip.update(cipher.update(secret) + cipher.finalize()) + strip.finalize()


def read_key(text: str) -> tuple[bytes, KeyForm]:
    """The key in an `aes_key` member; both alphabets of base64 and missing padding are taken.

    raises ValueError for anything but 16 bytes or 32 hex characters
    """
    plain = text.replace("-", "+").replace("_", "/").rstrip("=")
    try:
        decoded = base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    except binascii.Error as error:
        raise ValueError("not base64") from error
    if len(decoded) == BLOCK_BYTES:
        return decoded, KeyForm.RAW
    letters = decoded.decode("latin-1")
    if _HEX32.match(letters):
        return bytes.fromhex(letters), KeyForm.HEX
    raise ValueError("neither 16 bytes nor 32 hex characters")


def write_key(key: bytes, form: KeyForm) -> str:
    return base64.b64encode(key if form is KeyForm.RAW else key.hex().encode()).decode()


def md5_hex(plain: bytes) -> str:
    return hashlib.md5(plain, usedforsecurity=False).hexdigest()


@dataclass(frozen=True, slots=True)
class Announced:
    """An upload that getuploadurl allowed."""

    filekey: str
    filesize: int


@dataclass(frozen=True, slots=True)
class Stored:
    """An object on the CDN. key: known only for what a person sent; a fault needs it to spoil the padding."""

    secret: bytes
    key: bytes | None


@dataclass(slots=True)
class Shelves:
    """Every ticket of the simulated CDN. Tickets are base64 with its awkward characters, so encoding matters."""

    mint: Mint
    announced: dict[str, Announced] = field(default_factory=dict)
    stored: dict[str, Stored] = field(default_factory=dict)
    full_url_tickets: set[str] = field(default_factory=set)

    def announce(self, filekey: str, filesize: int) -> str:
        ticket = self.mint.ticket()
        self.announced[ticket] = Announced(filekey, filesize)
        return ticket

    def upload(self, ticket: str, filekey: str, secret: bytes) -> str | None:
        """The download ticket; None when the ticket, its file key or the length is not what was announced."""
        announced = self.announced.get(ticket)
        if announced is None or announced.filekey != filekey or announced.filesize != len(secret):
            return None
        return self._store(Stored(secret, None))

    def put(self, key: bytes, plain: bytes) -> str:
        """What a person attached, on its way to a bot."""
        return self._store(Stored(encrypt(key, plain), key))

    def put_plain(self, plain: bytes) -> str:
        """An object without a cipher: what a message without any key points to."""
        return self._store(Stored(plain, None))

    def fetch(self, ticket: str) -> Stored | None:
        return self.stored.get(ticket)

    def _store(self, stored: Stored) -> str:
        ticket = self.mint.ticket()
        self.stored[ticket] = stored
        return ticket


def spoil_padding(stored: Stored) -> bytes:
    """The same object with a last block that no PKCS#7 reader accepts."""
    key = stored.key or bytes(BLOCK_BYTES)
    cipher = Cipher(AES(key), ECB()).encryptor()
    return stored.secret[:-BLOCK_BYTES] + cipher.update(bytes(BLOCK_BYTES)) + cipher.finalize()
