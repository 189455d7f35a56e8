"""worker/sandbox/seccomp.py: the program, run by a small interpreter of its own; the attacks run it in the kernel."""

import errno
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.spec import NetworkMode
from worker.sandbox.seccomp import (
    ARCHITECTURES,
    CHANGES_OF_MODE,
    NEWEST_KNOWN,
    NUMBERS,
    REFUSED,
    program,
)

ALLOW, KILL, ASK = "allow", "kill", "ask"
machines = pytest.mark.parametrize("machine", sorted(ARCHITECTURES))
MODES = (NetworkMode.NONE, NetworkMode.GATEWAY, NetworkMode.OPEN)


def verdict(code: bytes, *, arch: int, number: int, arguments: tuple[int, ...] = ()) -> str | int:
    """What the kernel would do: ALLOW, KILL, or the errno that the call answers."""
    padded = (*arguments, 0, 0, 0, 0, 0, 0)[:6]
    data = struct.pack("=iIQ6Q", number & 0x7FFFFFFF, arch, 0, *(value & 0xFFFFFFFFFFFFFFFF for value in padded))
    instructions = list(struct.iter_unpack("=HBBI", code))
    accumulator, position = 0, 0
    while True:
        opcode, true, false, constant = instructions[position]
        position += 1
        match opcode:
            case 0x20:
                (accumulator,) = struct.unpack_from("=I", data, constant)
            case 0x54:
                accumulator &= constant
            case 0x15 | 0x25 | 0x45:
                holds = {0x15: accumulator == constant, 0x25: accumulator > constant, 0x45: accumulator & constant}
                position += true if holds[opcode] else false
            case 0x06:
                action = constant & 0xFFFF0000
                return {0x7FFF0000: ALLOW, 0x80000000: KILL, 0x7FC00000: ASK}.get(action, constant & 0xFFFF)
            case _:
                raise AssertionError(f"an instruction that is not expected: {opcode:#x}")


def ask(
    machine: str,
    name: str,
    *arguments: int,
    network: NetworkMode = NetworkMode.NONE,
    pretend: bool = False,
    asking: bool = False,
) -> str | int:
    architecture = ARCHITECTURES[machine]
    number = NUMBERS[name][architecture.column]
    assert number is not None
    code = program(network, machine=machine, pretend_chmod=pretend, ask_to_connect=asking)
    return verdict(code, arch=architecture.audit, number=number, arguments=arguments)


@machines
def test_another_architecture_is_killed_whatever_it_calls(machine: str) -> None:
    code = program(NetworkMode.NONE, machine=machine, pretend_chmod=False)
    others = {architecture.audit for name, architecture in ARCHITECTURES.items() if name != machine} | {0x40000003}

    assert {verdict(code, arch=other, number=0) for other in others} == {KILL}


@machines
@pytest.mark.parametrize("network", MODES)
def test_every_refused_call_answers_eperm(machine: str, network: NetworkMode) -> None:
    for name in REFUSED:
        if NUMBERS[name][ARCHITECTURES[machine].column] is not None:
            assert ask(machine, name, network=network) == errno.EPERM, name


@machines
@given(number=st.integers(min_value=0, max_value=NEWEST_KNOWN))
def test_what_no_table_names_is_allowed(machine: str, number: int) -> None:
    architecture = ARCHITECTURES[machine]
    named = {numbers[architecture.column] for numbers in NUMBERS.values()}
    code = program(NetworkMode.NONE, machine=machine, pretend_chmod=False)

    if number not in named:
        assert verdict(code, arch=architecture.audit, number=number) == ALLOW


@machines
@given(number=st.integers(min_value=NEWEST_KNOWN + 1, max_value=0x7FFFFFFF))
def test_newer_calls_and_the_x32_table_are_absent(machine: str, number: int) -> None:
    code = program(NetworkMode.OPEN, machine=machine, pretend_chmod=True)

    assert verdict(code, arch=ARCHITECTURES[machine].audit, number=number) == errno.ENOSYS


@machines
@given(arguments=st.tuples(*[st.integers(min_value=0, max_value=2**64 - 1)] * 6), number=st.integers(0, NEWEST_KNOWN))
def test_every_path_through_the_program_ends(machine: str, arguments: tuple[int, ...], number: int) -> None:
    for network in MODES:
        code = program(network, machine=machine, pretend_chmod=True)
        assert verdict(code, arch=ARCHITECTURES[machine].audit, number=number, arguments=arguments) != KILL


@machines
def test_clone_is_allowed_without_new_namespaces_and_clone3_is_absent(machine: str) -> None:
    thread = 0x3D0F00  # what a C library passes for a thread

    assert ask(machine, "clone", 17) == ALLOW
    assert ask(machine, "clone", thread) == ALLOW
    for flag in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
        assert ask(machine, "clone", 17 | flag) == errno.EPERM
    assert ask(machine, "clone3") == errno.ENOSYS


@machines
def test_calls_about_another_process_are_refused_or_pretended(machine: str) -> None:
    assert ask(machine, "prlimit64", 0, 7) == ALLOW
    assert ask(machine, "prlimit64", 4711, 7) == errno.EPERM
    assert ask(machine, "setpriority", 0, 0, 5) == ALLOW
    assert ask(machine, "setpriority", 0, 4711, 5) == errno.EPERM
    assert ask(machine, "setpriority", 2, 0, 5) == errno.EPERM
    assert ask(machine, "ioprio_set", 1, 0, 0) == ALLOW
    assert ask(machine, "ioprio_set", 3, 0, 0) == errno.EPERM
    for name in ("sched_setaffinity", "sched_setscheduler", "sched_setparam", "sched_setattr"):
        assert ask(machine, name, 0) == ALLOW
        assert ask(machine, name, 4711) == 0, "success without effect"


@machines
def test_no_socket_for_a_worker_without_a_model(machine: str) -> None:
    for family in range(48):
        for kind in (1, 2, 3, 5):
            assert ask(machine, "socket", family, kind) == errno.EACCES


@machines
@given(family=st.integers(0, 64), kind=st.integers(0, 15), protocol=st.sampled_from([0, 1, 6, 17, 132, 262]))
def test_gateway_mode_is_tcp_over_ipv4_and_nothing_else(machine: str, family: int, kind: int, protocol: int) -> None:
    for flags in (0, 0o4000, 0o2000000):
        answer = ask(machine, "socket", family, kind | flags, protocol, network=NetworkMode.GATEWAY)
        assert answer == (ALLOW if (family, kind) == (2, 1) and protocol in (0, 6) else errno.EACCES)


@machines
@given(family=st.integers(0, 64), protocol=st.sampled_from([0, 1, 6, 15, 17, 262]))
def test_open_mode_has_the_internet_and_no_unix_socket(machine: str, family: int, protocol: int) -> None:
    allowed = (family in (2, 10) and protocol in (0, 6, 17)) or (family == 16 and protocol == 0)

    answer = ask(machine, "socket", family, 1, protocol, network=NetworkMode.OPEN)

    assert answer == (ALLOW if allowed else errno.EACCES)


@machines
def test_a_first_packet_with_data_is_refused_where_only_connect_is_watched(machine: str) -> None:
    fast = 0x20000000 | 0x4000
    for name, arguments in (("sendto", (3, 0, 1, fast)), ("sendmsg", (3, 0, fast)), ("sendmmsg", (3, 0, 1, fast))):
        assert ask(machine, name, *arguments, network=NetworkMode.GATEWAY) == errno.EACCES
        assert ask(machine, name, *(value & ~fast for value in arguments), network=NetworkMode.GATEWAY) == ALLOW
        assert ask(machine, name, *arguments, network=NetworkMode.OPEN) == ALLOW


@machines
def test_pairs_of_streams_are_allowed_and_pairs_of_datagrams_are_not(machine: str) -> None:
    for flags in (0, 0o4000 | 0o2000000):
        assert ask(machine, "socketpair", 1, 1 | flags) == ALLOW
        assert ask(machine, "socketpair", 1, 5 | flags) == ALLOW
        assert ask(machine, "socketpair", 1, 2 | flags) == errno.EACCES
        assert ask(machine, "socketpair", 1, 3 | flags) == errno.EACCES


@machines
def test_changes_of_mode_are_pretended_only_where_that_is_asked_for(machine: str) -> None:
    for name in CHANGES_OF_MODE:
        if NUMBERS[name][ARCHITECTURES[machine].column] is not None:
            assert ask(machine, name, pretend=True) == 0
            assert ask(machine, name, pretend=False) == ALLOW


@machines
def test_prctl_ioctl_and_inotify_answer_as_written(machine: str) -> None:
    assert [ask(machine, "prctl", option) for option in (1, 36, 0x59616D61)] == [errno.EPERM] * 3
    assert ask(machine, "prctl", 15) == ALLOW
    assert [ask(machine, "ioctl", 0, request) for request in (0x5412, 0x541C)] == [errno.EPERM] * 2
    assert ask(machine, "ioctl", 0, 0xDEAD_0000_0000 | 0x5412) == errno.EPERM, "the kernel looks at 32 bits as well"
    assert ask(machine, "ioctl", 0, 0x5401) == ALLOW
    assert ask(machine, "inotify_init1") == errno.EMFILE


@machines
def test_the_program_is_well_below_the_kernels_4096_instructions(machine: str) -> None:
    for network in MODES:
        assert len(program(network, machine=machine, pretend_chmod=True)) < 400 * 8


def test_a_machine_without_a_table_has_no_filter() -> None:
    with pytest.raises(OSError, match="riscv64"):
        program(NetworkMode.NONE, machine="riscv64", pretend_chmod=False)


@machines
def test_no_two_names_share_a_number(machine: str) -> None:
    column = ARCHITECTURES[machine].column
    numbers = [both[column] for both in NUMBERS.values() if both[column] is not None]

    assert len(numbers) == len(set(numbers))


@machines
def test_a_connect_is_asked_for_only_where_somebody_answers_and_then_nothing_listens(machine: str) -> None:
    gateway = NetworkMode.GATEWAY

    assert ask(machine, "connect", 3, network=gateway, asking=True) == ASK
    assert ask(machine, "bind", 3, network=gateway, asking=True) == errno.EACCES
    assert ask(machine, "listen", 3, network=gateway, asking=True) == errno.EACCES
    assert ask(machine, "socket", 2, 1, 0, network=gateway, asking=True) == ALLOW
    assert ask(machine, "sendto", 3, 0, 0, 0x20000000, network=gateway, asking=True) == errno.EACCES
    for name in ("connect", "bind", "listen"):
        assert ask(machine, name, 3, network=gateway) == ALLOW
