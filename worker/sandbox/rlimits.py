"""rlimits: what the kernel counts for each process of a worker. One function, apply().

Not limited by any of these: total disk, total memory of the tree; a cgroup or the nanny's watch does that.
"""

import resource

from protocol.spec import WorkerLimits


def apply(limits: WorkerLimits, *, processes: int | None) -> None:
    """Soft and hard limits alike, so that nothing inside can raise them.

    processes  None = not limited here: RLIMIT_NPROC counts per user, and that number would be everybody's
    raises     OSError when a limit is refused
    """
    wanted = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NOFILE: limits.open_files,
        resource.RLIMIT_FSIZE: limits.file_bytes,
        resource.RLIMIT_DATA: limits.memory_bytes,  # not AS: a Java or Node runtime reserves far more than it uses
        resource.RLIMIT_CPU: limits.cpu_s,
    }
    if processes is not None:
        wanted[resource.RLIMIT_NPROC] = processes
    for kind, value in wanted.items():
        hard = resource.getrlimit(kind)[1]
        lower = value if hard == resource.RLIM_INFINITY else min(value, hard)
        try:
            resource.setrlimit(kind, (lower, lower))
        except ValueError as error:
            raise OSError(f"limit {kind}: {error}") from error
