"""Nobody but WeChat is ever reached: by the supervisor, its helpers, a worker, or an agent that wants to get out.

How it is known: trap.py, a network that notes every first packet. What is done in it: long_life.py.
"""

import json
import subprocess
import sys

import pytest

from tests.attacks.long_life import NO_TRAP
from tests.fakes.bridge import ROOT

DEADLINE_S = 150


@pytest.mark.skipif(sys.platform != "linux", reason="Linux only")
@pytest.mark.timeout(DEADLINE_S + 20)
def test_in_a_long_life_no_process_of_the_bridge_reaches_for_anybody_but_wechat() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.attacks.long_life"], cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE_S
    )
    if done.returncode == NO_TRAP:
        pytest.skip(done.stdout.strip())

    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    told = json.loads(done.stdout)
    assert told["control"] == 2, "the trap notes what there is to note"
    assert told["lost"] == 0
    assert told["reached"] == told["wechat"]
    assert len(told["said"]) == 4
    assert all(one.startswith("refused: ") for one in told["said"])
