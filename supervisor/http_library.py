"""httpx without its command line, which would load rich and pygments into every process that makes a request.

That takes 85 ms of processor time at each start of the supervisor, and of the gateway (DECISIONS.md). httpx does without
where they are not installed; here they are, for our own console, so it is told that its command line is absent.
"""

import sys

sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]  # what an import takes for "there is none"

import httpx  # noqa: E402  (the line above has to come first)

__all__ = ["httpx"]
