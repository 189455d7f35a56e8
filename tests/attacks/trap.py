"""A network that leads nowhere, and notes who was to be reached: for everything that this process starts from then on.

A network namespace with nothing but loopback, whose routing table takes every address of the world for its own. So any
attempt to reach anybody, by whichever program and protocol, becomes packets on `lo`, which are read here as the kernel
sends them. Nothing is asked of the programs under test.
"""

import contextlib
import fcntl
import os
import socket
import struct
import threading
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from worker.sandbox import linux

ETH_P_ALL = 3
PACKET_OUTGOING = 4
SOL_PACKET, PACKET_STATISTICS = 263, 6
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1
RTM_NEWROUTE, REQUEST_CREATE_ACK = 24, 0x1 | 0x400 | 0x4
LOCAL_TABLE, BOOT, HOST_SCOPE, LOCAL_ROUTE = 255, 3, 254, 2
RTA_OIF = 4
BUFFER_BYTES = 32 * 1024 * 1024
LAST_PACKET_S = 0.5
SYN, ACK = 0x02, 0x10
UNREACHABLE = (3, 1)  # by ICMP and by ICMPv6


class NoTrap(Exception):
    """This machine does not let us have one; its text says why."""


@dataclass(frozen=True, order=True)
class Reached:
    """protocol: tcp, udp, or a number."""

    protocol: str
    host: str
    port: int


@dataclass
class Trap:
    """From its making on this process is in the new network; the notes are complete once it is left."""

    reached: set[Reached] = field(default_factory=set)
    lost: int = 0

    def __post_init__(self) -> None:
        """Before any thread is started. raises NoTrap"""
        try:
            _enter()
            _bring_up()
            _own_everything(socket.AF_INET)
        except OSError as error:
            raise NoTrap(f"no network of our own: {error}") from error
        with contextlib.suppress(OSError):  # a machine without IPv6
            _own_everything(socket.AF_INET6)
        self._listening = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ETH_P_ALL))
        self._listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
        self._listening.bind(("lo", ETH_P_ALL))
        self._listening.settimeout(LAST_PACKET_S)
        self._over = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> Self:
        self._reader.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._reader.join()
        statistics = self._listening.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8)
        self.lost = struct.unpack("II", statistics)[1]
        self._listening.close()

    def _read(self) -> None:
        while True:
            try:
                packet, (_, _, kind, *_) = self._listening.recvfrom(256)
            except TimeoutError:
                if self._over.is_set():
                    return
                continue
            if kind == PACKET_OUTGOING and (found := _first_packet(packet)) is not None:
                self.reached.add(found)


def _first_packet(packet: bytes) -> Reached | None:
    """Whom it is for, if it opens something: the first packet of a TCP connection, any of another protocol."""
    if packet[0] >> 4 == 4:
        protocol, start = packet[9], (packet[0] & 15) * 4
        host = socket.inet_ntop(socket.AF_INET, packet[16:20])
    else:
        protocol, start = packet[6], 40
        host = socket.inet_ntop(socket.AF_INET6, packet[24:40])
    if protocol in (socket.IPPROTO_ICMP, socket.IPPROTO_ICMPV6) and packet[start] in UNREACHABLE:
        return None  # the kernel's own answer to a datagram that nobody waited for
    if protocol not in (socket.IPPROTO_TCP, socket.IPPROTO_UDP):
        return Reached(str(protocol), host, 0)
    (port,) = struct.unpack_from("!H", packet, start + 2)
    if protocol == socket.IPPROTO_UDP:
        return Reached("udp", host, port)
    return Reached("tcp", host, port) if packet[start + 13] & (SYN | ACK) == SYN else None


def _enter() -> None:
    uid, gid = os.geteuid(), os.getegid()
    if uid == 0:
        linux.unshare(linux.CLONE_NEWNET)
        return
    linux.unshare(linux.CLONE_NEWUSER | linux.CLONE_NEWNET)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")


def _bring_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sH14x", b"lo", 0)
        (flags,) = struct.unpack_from("16xH", fcntl.ioctl(any_socket, SIOCGIFFLAGS, request))
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags | IFF_UP))


def _own_everything(family: int) -> None:
    """ip route add local default dev lo"""
    route = struct.pack("=8BI", family, 0, 0, 0, LOCAL_TABLE, BOOT, HOST_SCOPE, LOCAL_ROUTE, 0)
    attribute = struct.pack("=HHi", 8, RTA_OIF, socket.if_nametoindex("lo"))
    body = route + attribute
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as kernel:
        kernel.sendto(struct.pack("=IHHII", 16 + len(body), RTM_NEWROUTE, REQUEST_CREATE_ACK, 1, 0) + body, (0, 0))
        (code,) = struct.unpack_from("=i", kernel.recv(4096), 16)
    if code:
        raise OSError(-code, os.strerror(-code))
