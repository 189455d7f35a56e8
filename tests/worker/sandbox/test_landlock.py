"""worker/sandbox/landlock.py: the words it hands to the kernel; the attacks show what they do."""

import struct

import pytest

from worker.sandbox.landlock import handled_files, path_access, ruleset_attr
from worker.sandbox.plan import Right

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, MAKE_CHAR, MAKE_BLOCK = 0, 1, 2, 3, 6, 11
REFER, TRUNCATE, IOCTL_DEV = 13, 14, 15


@pytest.mark.parametrize(
    ("abi", "bits"), [(1, 13), (2, 14), (3, 15), (4, 15), (5, 16), (6, 16), (7, 16), (8, 16), (9, 17), (10, 17)]
)
def test_each_abi_handles_every_file_right_that_it_knows(abi: int, bits: int) -> None:
    assert handled_files(abi) == 2**bits - 1


@pytest.mark.parametrize(("abi", "size"), [(1, 8), (3, 8), (4, 16), (5, 16), (6, 24), (10, 24)])
def test_the_rule_set_is_as_long_as_the_abi_knows_it(abi: int, size: int) -> None:
    attr = ruleset_attr(abi, handled_ports=3)

    assert len(attr) == size
    assert struct.unpack(f"={size // 8}Q", attr) == (handled_files(abi), 3, 3)[: size // 8]


@pytest.mark.parametrize("abi", range(1, 11))
def test_no_right_is_given_that_the_abi_does_not_handle(abi: int) -> None:
    everything = Right.READ | Right.WRITE | Right.EXECUTE | Right.DEVICE

    assert path_access(abi, everything, is_folder=True) & ~handled_files(abi) == 0


def test_a_file_gets_no_right_that_only_a_folder_can_have() -> None:
    everything = Right.READ | Right.WRITE | Right.EXECUTE | Right.DEVICE

    access = path_access(7, everything, is_folder=False)

    assert access == sum(1 << bit for bit in (EXECUTE, WRITE_FILE, READ_FILE, TRUNCATE, IOCTL_DEV))


def test_device_nodes_are_never_made_and_writing_is_no_executing() -> None:
    access = path_access(7, Right.READ | Right.WRITE, is_folder=True)

    for bit in (MAKE_CHAR, MAKE_BLOCK, EXECUTE, IOCTL_DEV):
        assert not access & 1 << bit
    for bit in (READ_FILE, READ_DIR, REFER, TRUNCATE):
        assert access & 1 << bit
