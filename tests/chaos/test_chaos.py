"""Killed anywhere, nothing lost, nothing twice: three hundred kills on real processes. scripts/chaos does as many as you like.

Each test is one home of a run, so that several run side by side.
"""

import pytest

from tests.chaos import run

SEED = 4
# The kills that bring about a point (a cold start, a worker's end) come on top: three hundred in all.
SHARES = run.deal(216, SEED, homes=8)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("share", SHARES, ids=lambda share: f"{share.agent.value}-{share.seed}")
def test_whoever_is_killed_whenever_nothing_is_lost_and_nothing_is_said_twice(share: run.Share) -> None:
    figures = run.play(share)

    assert not figures.violations, run.report(figures, wall_s=0.0)
    assert figures.kills.total() >= 0.9 * len(share.kills)
    assert figures.states["answered"] > 0


def test_a_run_deals_the_mix_that_was_asked_for_and_every_point_with_its_own_process_and_another() -> None:
    kills = [kill for share in run.deal(10_000, 1) for kill in share.kills]

    assert len(kills) == 10_000
    counts = {target: sum(kill.target is target for kill in kills) for target in run.Target}
    assert counts[run.Target.SUPERVISOR] >= 1500
    assert counts[run.Target.ZYGOTE] >= 500
    assert counts[run.Target.GATEWAY] >= 500
    assert counts[run.Target.NANNY] > 2000 and counts[run.Target.WORKER] > 2000
    for point, passer in run.POINTS.items():
        targets = {kill.target for kill in kills if kill.point == point}
        assert run.PASSER_TARGET[passer] in targets and len(targets) > 1, point


def test_the_same_seed_deals_the_same_kills() -> None:
    assert run.deal(500, 7) == run.deal(500, 7) != run.deal(500, 8)
