"""Landlock: the worker reaches the files and TCP ports of its plan, and nothing else. One function, apply().

source   Documentation/userspace-api/landlock.rst; ABI 1 = Linux 5.13, 2 = 5.19, 3 = 6.2, 4 = 6.7, 5 = 6.10, 6 = 6.12
It does not cover chmod, chown, utime, xattr, stat, chdir, path sockets below ABI 9, MPTCP, MSG_FASTOPEN, UDP: seccomp
and the mount namespace do. It has no rules that deny.
"""

import errno
import os
import stat
import struct
from collections.abc import Iterable

from worker.sandbox import linux
from worker.sandbox.plan import Right, Rule

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_REMOVE_DIR, _REMOVE_FILE = 1 << 4, 1 << 5
_MAKE_DIR, _MAKE_REG, _MAKE_SOCK, _MAKE_FIFO, _MAKE_SYM = 1 << 7, 1 << 8, 1 << 9, 1 << 10, 1 << 12
_REFER, _TRUNCATE, _IOCTL_DEV, _RESOLVE_UNIX = 1 << 13, 1 << 14, 1 << 15, 1 << 16

# MAKE_CHAR (6) and MAKE_BLOCK (11) are handled and never given.
_BITS = {
    Right.READ: _READ_FILE | _READ_DIR,
    Right.WRITE: _WRITE_FILE
    | _REMOVE_DIR
    | _REMOVE_FILE
    | _MAKE_DIR
    | _MAKE_REG
    | _MAKE_SOCK
    | _MAKE_FIFO
    | _MAKE_SYM
    | _REFER
    | _TRUNCATE,
    Right.EXECUTE: _EXECUTE,
    Right.DEVICE: _IOCTL_DEV,
}
_OF_A_FILE = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV | _RESOLVE_UNIX

_BIND_TCP, _CONNECT_TCP = 1, 2
_SCOPE_ABSTRACT_SOCKETS, _SCOPE_SIGNALS = 1, 2
_RULE_PATH, _RULE_PORT = 1, 2


def handled_files(abi: int) -> int:
    """Every file right that this ABI knows: what is not handled is allowed."""
    bits = 13
    for since, last in ((2, 14), (3, 15), (5, 16), (9, 17)):
        if abi >= since:
            bits = last
    return (1 << bits) - 1


def ruleset_attr(abi: int, *, handled_ports: int) -> bytes:
    """struct landlock_ruleset_attr as long as this ABI knows it; a longer one is E2BIG."""
    scopes = _SCOPE_ABSTRACT_SOCKETS | _SCOPE_SIGNALS
    whole = struct.pack("=QQQ", handled_files(abi), handled_ports, scopes)
    return whole[: 8 if abi < 4 else 16 if abi < 6 else 24]


def path_access(abi: int, rights: Right, *, is_folder: bool) -> int:
    access = 0
    for right in rights:
        access |= _BITS[right]
    return access & handled_files(abi) & (~0 if is_folder else _OF_A_FILE)


def apply(
    abi: int, rules: Iterable[Rule], *, tcp_connect: tuple[int, ...] | None, tcp_bind: tuple[int, ...] = ()
) -> None:
    """Restrict this thread and its descendants. Needs no_new_privs, and no second thread.

    tcp_connect  ports that may be connected to; None leaves TCP to others (`full`)
    tcp_bind     ports that may be bound, where TCP is not left to others
    raises       OSError: EOPNOTSUPP without Landlock. A path that does not exist is left out: nothing to allow
    """
    if abi < 1:
        raise OSError(errno.EOPNOTSUPP, "Landlock is absent or switched off")
    handled_ports = 0 if tcp_connect is None or abi < 4 else _BIND_TCP | _CONNECT_TCP
    ruleset = linux.landlock_create_ruleset(ruleset_attr(abi, handled_ports=handled_ports))
    try:
        for rule in rules:
            _allow_path(ruleset, abi, rule)
        if handled_ports:
            for right, ports in ((_CONNECT_TCP, tcp_connect or ()), (_BIND_TCP, tcp_bind)):
                for port in ports:
                    linux.landlock_add_rule(ruleset, _RULE_PORT, struct.pack("=QQ", right, port))
        linux.landlock_restrict_self(ruleset)
    finally:
        os.close(ruleset)


def _allow_path(ruleset: int, abi: int, rule: Rule) -> None:
    try:
        path = os.open(rule.path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # absent, or beyond our reach already
    try:
        access = path_access(abi, rule.rights, is_folder=stat.S_ISDIR(os.fstat(path).st_mode))
        linux.landlock_add_rule(ruleset, _RULE_PATH, struct.pack("=Qi", access, path))
    finally:
        os.close(path)
