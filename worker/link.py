"""The worker's end of the inherited socketpair: first words, pulses, messages.

At the other end sits the nanny, which checks every frame. Before the event loop runs, entry.py speaks with tell() and
wait_for_grant(), which block; from then on turn.py sends and receives, and pulses() says "still working" while it is.
"""

import asyncio
import socket
from collections import deque
from collections.abc import Callable

import msgspec

from protocol.codec import Unframer, encode, frame, to_worker
from protocol.to_supervisor import FromWorker, Pulse
from protocol.to_worker import Grant, ToWorker
from worker.turn import Pace

PULSE_S = 1.0
READ_BYTES = 64 * 1024


class Link:
    """One reader and any number of senders. raises OSError from every send once the nanny is gone"""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._unframer = Unframer()
        self._payloads: deque[bytes] = deque()
        self._unsent = bytearray()
        self._sending = asyncio.Lock()
        self._busy = asyncio.Event()

    def tell(self, message: FromWorker) -> None:
        """Blocks."""
        self._end.sendall(_framed(message))

    def wait_for_grant(self) -> Grant | None:
        """Blocks. None: the supervisor's side is gone, or said something else first."""
        while not self._payloads:
            data = self._end.recv(READ_BYTES)
            if not data:
                return None
            self._payloads.extend(self._unframer.feed(data))
        first = to_worker.decode(self._payloads.popleft())
        return first if isinstance(first, Grant) else None

    async def receive(self) -> ToWorker | None:
        """None: the supervisor's side is gone. A cancelled receive loses nothing."""
        self._end.setblocking(False)
        while not self._payloads:
            try:
                data = self._end.recv(READ_BYTES)
            except BlockingIOError:
                loop = asyncio.get_running_loop()
                await _until(self._end, loop.add_reader, loop.remove_reader)
            else:
                if not data:
                    return None
                self._payloads.extend(self._unframer.feed(data))
        return to_worker.decode(self._payloads.popleft())

    async def send(self, message: FromWorker) -> None:
        """Waits while the other side does not read. What a cancelled sender leaves behind goes before the next frame."""
        data = _framed(message)
        self._end.setblocking(False)
        async with self._sending:
            self._unsent += data
            while self._unsent:
                try:
                    sent = self._end.send(self._unsent)
                except BlockingIOError:
                    loop = asyncio.get_running_loop()
                    await _until(self._end, loop.add_writer, loop.remove_writer)
                else:
                    del self._unsent[:sent]

    def pace(self, pace: Pace) -> None:
        if pace is Pace.BUSY:
            self._busy.set()
        else:
            self._busy.clear()

    async def pulses(self) -> None:
        """Runs until cancelled. Sent by the loop that does the work, so that a loop which hangs falls silent."""
        while True:
            await self._busy.wait()
            if not self._sending.locked():  # else a longer message is on its way, which says as much
                await self.send(Pulse())
            await asyncio.sleep(PULSE_S)


def _framed(message: msgspec.Struct) -> bytes:
    return frame(encode(message))


async def _until(
    end: socket.socket,
    add: Callable[[socket.socket, Callable[[], None]], None],
    remove: Callable[[socket.socket], bool],
) -> None:
    """Until the loop finds the socket ready. It is not read or written here, so that a cancel comes between two frames."""
    ready = asyncio.Event()
    add(end, ready.set)
    try:
        await ready.wait()
    finally:
        remove(end)
