"""worker/sandbox/rlimits.py, in a child of its own."""

import resource

from protocol.spec import WorkerLimits
from tests.attacks.sandboxed import outside
from worker.sandbox import rlimits

LIMITS = WorkerLimits(memory_bytes=1 << 30, processes=64, file_bytes=1 << 20, open_files=128, cpu_s=90)


def test_soft_and_hard_limits_are_those_of_the_plan() -> None:
    def body() -> list[object]:
        rlimits.apply(LIMITS, processes=50)
        kinds = ("CORE", "NOFILE", "FSIZE", "DATA", "CPU", "NPROC")
        return [resource.getrlimit(getattr(resource, f"RLIMIT_{kind}")) for kind in kinds]

    assert outside(body).value == [[n, n] for n in (0, 128, 1 << 20, 1 << 30, 90, 50)]


def test_without_a_count_of_its_own_processes_stay_as_they_were() -> None:
    def body() -> bool:
        before = resource.getrlimit(resource.RLIMIT_NPROC)
        rlimits.apply(LIMITS, processes=None)
        return resource.getrlimit(resource.RLIMIT_NPROC) == before

    assert outside(body).value is True


def test_a_limit_that_is_lower_already_is_kept() -> None:
    def body() -> list[int]:
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        rlimits.apply(LIMITS, processes=None)
        return list(resource.getrlimit(resource.RLIMIT_NOFILE))

    assert outside(body).value == [64, 64]
