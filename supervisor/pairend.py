"""One end of a socketpair that carries frames of protocol.codec, in an event loop.

What is sent waits in order while the other side does not read; what has arrived can be taken at once, without waiting
for the loop to come round to it (read()). Used between supervisor and gateway.
"""

import asyncio
import socket
from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

from protocol.codec import Codec, Unframer, encode, frame
from protocol.errors import ProtocolViolation

READ_BYTES = 64 * 1024
UNSENT_BYTES = 4 * 1024 * 1024  # the other side is a process of ours: if it reads none of it, it is lost

T = TypeVar("T")


class PairEnd(Generic[T]):
    """on_message for each message, in order; on_end once: the other side is gone, or talks nonsense."""

    def __init__(
        self, end: socket.socket, codec: Codec[T], on_message: Callable[[T], None], on_end: Callable[[], None]
    ) -> None:
        end.setblocking(False)
        self._end = end
        self._codec = codec
        self._on_message = on_message
        self._on_end = on_end
        self._unframer = Unframer()
        self._unsent = bytearray()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(end, self.read)
        self._closed = False

    def send(self, message: msgspec.Struct) -> None:
        """Does nothing once the pair has ended."""
        if self._closed:
            return
        was_empty = not self._unsent
        self._unsent += frame(encode(message))
        if len(self._unsent) > UNSENT_BYTES:
            self._over()
        elif was_empty:
            self._write()
            if self._unsent and not self._closed:
                self._loop.add_writer(self._end, self._write)

    def read(self) -> None:
        """Take all that has arrived by now."""
        while not self._closed:
            try:
                data = self._end.recv(READ_BYTES)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._over()
                return
            try:
                messages = [self._codec.decode(payload) for payload in self._unframer.feed(data)]
            except ProtocolViolation:
                self._over()
                return
            for message in messages:
                self._on_message(message)

    def close(self) -> None:
        """Without on_end. May be repeated."""
        if not self._closed:
            self._closed = True
            self._loop.remove_reader(self._end)
            self._loop.remove_writer(self._end)
            self._end.close()

    def _write(self) -> None:
        try:
            del self._unsent[: self._end.send(self._unsent)]
        except BlockingIOError:
            return
        except OSError:
            self._over()
            return
        if not self._unsent:
            self._loop.remove_writer(self._end)

    def _over(self) -> None:
        self.close()
        self._on_end()
