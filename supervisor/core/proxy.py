"""Whom the web proxy talks to: public addresses alone, and what a request to a proxy says.

Pure: names are resolved by supervisor/proxy.py, and each address that comes of it is judged here before it is
connected to, so that no name can mean one thing when it is judged and another when it is used.
"""

import base64
import binascii
import ipaddress
import re
from dataclasses import dataclass
from urllib.parse import urlsplit

HEAD_BYTES = 32 * 1024

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")  # the last four bytes are an IPv4 address
_COMPATIBLE = ipaddress.IPv6Network("::/96")


def is_public(address: str, own: frozenset[str] = frozenset()) -> bool:
    """May a worker with `network = true` reach it?

    address  as the resolver wrote it, a %scope allowed
    own      this machine's addresses, which are refused although they may be public
    """
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if str(parsed) in own:
        return False
    if isinstance(parsed, ipaddress.IPv6Address):
        inner = _ipv4_within(parsed)
        if inner is not None:
            return is_public(str(inner), own)
    # is_global alone lets multicast pass.
    return parsed.is_global and not (parsed.is_multicast or parsed.is_reserved or parsed.is_unspecified)


def _ipv4_within(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """The IPv4 address that a machine on the way would make of it."""
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address.teredo is not None:
        return address.teredo[1]
    if address in _NAT64 or address in _COMPATIBLE:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return None


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a client asks of a proxy. opening: bytes for the server before all else; () for a tunnel

    token   the worker's, from proxy-authorization; "" without one
    """

    host: str
    port: int
    tunnel: bool
    opening: bytes
    token: str


class NotUnderstood(ValueError):
    """No request that a proxy takes."""


_BEGINS = re.compile(rb"(?:CONNECT |[A-Z]+ http://)", re.IGNORECASE)
_HOP_BY_HOP = frozenset((b"proxy-authorization", b"proxy-connection", b"connection", b"keep-alive"))


def is_for_a_proxy(first_line: bytes) -> bool:
    return _BEGINS.match(first_line) is not None


def parse(head: bytes) -> Wanted:
    """The head of a request to a proxy, up to and with its empty line. raises NotUnderstood"""
    first, *lines = head.split(b"\r\n")
    words = first.split(b" ")
    if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
        raise NotUnderstood("no request line")
    method, target, version = words
    fields = [line.partition(b":") for line in lines if line]
    if any(not colon or not name or name != name.strip() for name, colon, _ in fields):
        raise NotUnderstood("no header")
    token = next((_token(value) for name, _, value in fields if name.lower() == b"proxy-authorization"), "")
    try:
        if method.upper() == b"CONNECT":
            host, port = _host_and_port(target.decode("ascii"))
            return Wanted(host, port, True, b"", token)
        parts = urlsplit(target.decode("ascii"))
        host, number = parts.hostname or "", parts.port or 80
    except ValueError:
        raise NotUnderstood("no target") from None
    if parts.scheme.lower() != "http" or not host:
        raise NotUnderstood("no target")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    kept = [name + b":" + value for name, _, value in fields if name.lower() not in _HOP_BY_HOP]
    # One request a connection: the next may be for another server.
    opening = b"\r\n".join([b" ".join((method, path.encode(), version)), *kept, b"Connection: close", b"", b""])
    return Wanted(host, number, False, opening, token)


def _host_and_port(target: str) -> tuple[str, int]:
    """raises ValueError"""
    host, colon, port = target.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError("no port")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError("no host")
    if not host:
        raise ValueError("no host")
    return host, int(port)


def _token(value: bytes) -> str:
    """The password of `Basic`, or what follows `Bearer`."""
    scheme, _, credentials = value.strip().partition(b" ")
    if scheme.lower() == b"bearer":
        return credentials.strip().decode("ascii", "replace")
    if scheme.lower() == b"basic":
        try:
            plain = base64.b64decode(credentials.strip(), validate=True)
        except binascii.Error:
            return ""
        return plain.partition(b":")[2].decode("utf-8", "replace")
    return ""
