"""Looks for a secret in the memory of another process."""


def memory_holds(pid: int, needle: bytes) -> bool:
    """Root reads any process's memory: all of its private, readable pages."""
    with (
        open(f"/proc/{pid}/maps", encoding="ascii", errors="replace") as maps,
        open(f"/proc/{pid}/mem", "rb") as memory,
    ):
        for line in maps:
            span, rights, *_ = line.split()
            if rights[0] != "r" or "[v" in line:
                continue
            start, end = (int(edge, 16) for edge in span.split("-"))
            memory.seek(start)
            try:
                if needle in memory.read(end - start):
                    return True
            except OSError:
                continue
    return False
