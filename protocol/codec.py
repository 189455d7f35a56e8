"""Frames ↔ messages. Caps come before decoding; an unknown message is an error, never a guess.

On the worker's socketpair a frame is a 4-byte little-endian length and one msgpack message; on ZeroMQ the message alone.
"""

import struct
from typing import Any, Generic, TypeVar

import msgspec

from protocol.errors import ProtocolViolation
from protocol.to_supervisor import FromWorker, ToSupervisor
from protocol.to_worker import ToWorker

FRAME_BYTES = 1024 * 1024  # most bytes of one message, either way
HEADER = struct.Struct("<I")

T = TypeVar("T")
_encoder = msgspec.msgpack.Encoder()


class Codec(Generic[T]):
    """Decodes one union and nothing else."""

    def __init__(self, union: Any) -> None:
        self._decoder = msgspec.msgpack.Decoder(union)

    def decode(self, payload: bytes | memoryview) -> T:
        """raises ProtocolViolation: too long, not msgpack, not of this union, nested beyond reason"""
        if len(payload) > FRAME_BYTES:
            raise ProtocolViolation(f"message of {len(payload)} bytes")
        try:
            message: T = self._decoder.decode(payload)
        except (msgspec.DecodeError, RecursionError) as error:
            raise ProtocolViolation(f"not a message we know: {type(error).__name__}") from error
        return message


from_worker: Codec[FromWorker] = Codec(FromWorker)
to_supervisor: Codec[ToSupervisor] = Codec(ToSupervisor)
to_worker: Codec[ToWorker] = Codec(ToWorker)


def encode(message: msgspec.Struct) -> bytes:
    """One message as msgpack. raises ProtocolViolation if it could never be received"""
    payload = _encoder.encode(message)
    if len(payload) > FRAME_BYTES:
        raise ProtocolViolation(f"{type(message).__name__} of {len(payload)} bytes")
    return payload


def frame(payload: bytes) -> bytes:
    return HEADER.pack(len(payload)) + payload


class Unframer:
    """Cuts a byte stream into payloads. Keeps at most one partial frame."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The payloads completed by data. raises ProtocolViolation as soon as a length is over FRAME_BYTES"""
        self._buffer += data
        done: list[bytes] = []
        while len(self._buffer) >= HEADER.size:
            (length,) = HEADER.unpack_from(self._buffer)
            if length > FRAME_BYTES:
                raise ProtocolViolation(f"frame of {length} bytes")
            end = HEADER.size + length
            if len(self._buffer) < end:
                break
            done.append(bytes(self._buffer[HEADER.size : end]))
            del self._buffer[:end]
        return done
