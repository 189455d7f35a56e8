"""A chaos run: kills dealt out over homes that live side by side, and what it came to.

    scripts/chaos [--kills N] [--seed S] [--jobs J] [--keep-going]

The mix of settled.md 48: at least 15 % supervisors, 5 % zygotes, 5 % gateways, the rest nannies and workers. Every point
of points.py is tried with its own process and with another one, as far as N goes; all else falls at instants that the
seed draws. The same seed deals the same kills; what they meet is up to the scheduler of the machine.
"""

import argparse
import json
import multiprocessing
import os
import random
import resource
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass

from tests.chaos.home import PASSER_TARGET, START_S, Agent, ChaosHome, Figures, Kill, Target, fitting
from tests.chaos.points import POINTS, Passer

SHARE = {Target.SUPERVISOR: 0.16, Target.ZYGOTE: 0.05, Target.GATEWAY: 0.055}  # the rest: nannies and workers
MODEL_HOMES = 4  # one home in so many asks a model, and has a gateway to kill
KILLS_A_HOME = 75
KILLS_A_REST = 25  # between two rests, at which everything is checked


@dataclass(frozen=True, slots=True)
class Share:
    """One home's part of a run. kept: see ChaosHome"""

    seed: int
    agent: Agent
    kept: bool
    kills: tuple[Kill, ...]


def deal(kills: int, seed: int, *, homes: int = 0) -> list[Share]:
    """Homes (0: as many as it takes), and in each the order of kills."""
    chance = random.Random(seed)
    count = homes or max(MODEL_HOMES, -(-kills // KILLS_A_HOME))
    count += -count % MODEL_HOMES
    agents = [Agent.MODEL if number % MODEL_HOMES == 0 else Agent.SCRIPTED for number in range(count)]
    sizes = [kills // count + (number < kills % count) for number in range(count)]
    pointed = {agent: _pointed(agent, chance) for agent in Agent}
    shares = []
    for number, (agent, size) in enumerate(zip(agents, sizes, strict=True)):
        of_this_kind = agents.count(agent)
        mine = min(size // 2, -(-2 * len(list(fitting(agent))) // of_this_kind))
        listed = [next(pointed[agent]) for _ in range(mine)]
        listed += list(_drawn(agent, size, listed, chance))
        chance.shuffle(listed)
        shares.append(
            Share(chance.randrange(2**31), agent, kept=number % 2 == 0 or chance.random() < 0.3, kills=tuple(listed))
        )
    return shares


def _pointed(agent: Agent, chance: random.Random) -> Iterator[Kill]:
    """Each point with its own process, each with another one, and so on for ever."""
    points = list(fitting(agent))
    chance.shuffle(points)
    others = [target for target in Target if target is not Target.GATEWAY or agent is Agent.MODEL]
    while True:
        for point in points:
            yield Kill(PASSER_TARGET[POINTS[point]], point)
        for point in points:
            own = PASSER_TARGET[POINTS[point]]
            if POINTS[point] is Passer.STARTING:
                yield Kill(Target.ZYGOTE, point)
            else:
                yield Kill(
                    chance.choice([target for target in others if target is not own]), point, chance.choice((1, 1, 2))
                )


def _drawn(agent: Agent, size: int, listed: Sequence[Kill], chance: random.Random) -> Iterator[Kill]:
    """What is missing to the mix, at instants that are drawn."""
    have = Counter(kill.target for kill in listed)
    left = size - len(listed)
    shares = dict(SHARE)
    gateways = shares.pop(Target.GATEWAY) * MODEL_HOMES  # they all fall into the homes that have one
    if agent is Agent.MODEL:
        shares[Target.GATEWAY] = gateways
    for target, share in shares.items():
        for _ in range(min(left, max(0, -int(-share * size // 1) - have[target]))):
            yield Kill(target)
            left -= 1
    for _ in range(left):
        yield Kill(chance.choice((Target.NANNY, Target.WORKER)))


def play(share: Share) -> Figures:
    """One home's life and end."""
    before = _cpu_s()
    home: ChaosHome | None = None
    figures = Figures()
    name = f"home {share.seed} ({share.agent.value}, {'kept' if share.kept else 'handed out once'})"
    try:
        with ChaosHome(share.seed, agent=share.agent, kept=share.kept) as home:
            for number, kill in enumerate(share.kills, start=1):
                home.kill(kill)
                if number % KILLS_A_REST == 0 or number == len(share.kills):
                    home.settle()
            if home.figures.violations:
                home.figures.violations.append(f"the end of its log:\n{home.tail(200)}")
    except AssertionError as error:
        figures.violations.append(str(error))
    except Exception as error:
        figures.violations.append(f"{type(error).__name__}: {error}")
        if home is not None:
            figures.violations.append(home.tail())
    if home is not None:
        figures.add(home.figures)
    figures.violations = [f"{name}: {line}" for line in figures.violations]
    figures.cpu_s = _cpu_s() - before
    return figures


def run(shares: Sequence[Share], jobs: int, *, keep_going: bool = True) -> Figures:
    """Side by side, `jobs` at a time; each in a process of its own, since it forks and has threads."""
    total = Figures()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=jobs, mp_context=context, max_tasks_per_child=1) as pool:
        waiting = [pool.submit(play, share) for share in shares]
        for number, done in enumerate(as_completed(waiting), start=1):
            total.add(done.result())
            print(
                f"\r{number} of {len(shares)} homes, {total.kills.total()} kills", end="", file=sys.stderr, flush=True
            )
            if total.violations and not keep_going:
                for one in waiting:
                    one.cancel()
                break
    print(file=sys.stderr)
    if total.to_poll_real and (median := statistics.median(total.to_poll_real)) > START_S:
        total.violations.append(f"{median:.2f} s from start to the first poll, in the middle of all starts")
    return total


def report(figures: Figures, *, wall_s: float) -> str:
    kills = figures.kills.total()
    mix = ", ".join(
        f"{count} {target} ({100 * count / max(1, kills):.0f} %)" for target, count in figures.kills.most_common()
    )
    lines = [
        f"kills              {kills}: {mix}",
        f"at kill points     {figures.points.total()}, {len(figures.points)} of {len(POINTS)} points"
        + (f"; nobody came by: {dict(figures.missed)}" if figures.missed else ""),
        f"messages           {figures.messages}: {', '.join(f'{n} {state}' for state, n in figures.states.most_common())}",
        f"bubbles on phones  {figures.bubbles}; sends repeated after a kill {figures.repeats}",
        f"never recorded     {figures.lost_on_the_way} (handed out once, and the supervisor killed before its commit)",
        _times("start to polling", figures.to_poll_real, "s, as a program"),
        _times("", figures.to_poll, "s, without imports"),
        _times("killed to all gone", figures.gone, "s"),
        f"took               {wall_s:.0f} s, {figures.cpu_s:.0f} s of processor; {figures.cpu_s / max(1, kills):.2f} s a kill",
        f"violations         {len(figures.violations)}",
    ]
    return "\n".join(lines + figures.violations)


def _times(name: str, values: Sequence[float], unit: str) -> str:
    if not values:
        return f"{name:<18} never"
    ranked = sorted(values)
    return (
        f"{name:<18} p50 {ranked[len(ranked) // 2]:.2f}, p95 {ranked[int(len(ranked) * 0.95)]:.2f},"
        f" most {ranked[-1]:.2f} {unit} ({len(ranked)} times)"
    )


def _cpu_s() -> float:
    """Of this process and of all that it has waited for. Those killed with their parents' parents are in there too."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="scripts/chaos", description="Kill the bridge's processes, and check its promises."
    )
    parser.add_argument("--kills", type=int, default=1000, metavar="N", help="how many")
    parser.add_argument("--seed", type=int, default=None, metavar="S", help="which (default: another each time)")
    parser.add_argument("--jobs", type=int, default=2 * (os.cpu_count() or 1), metavar="J", help="homes side by side")
    parser.add_argument("--keep-going", action="store_true", help="after a violation too")
    parser.add_argument("--json", action="store_true", help="the figures as JSON")
    asked = parser.parse_args()
    seed = asked.seed if asked.seed is not None else random.SystemRandom().randrange(2**31)
    print(f"seed {seed}", file=sys.stderr)
    began = time.monotonic()
    figures = run(deal(asked.kills, seed), asked.jobs, keep_going=asked.keep_going)
    wall_s = time.monotonic() - began
    print(
        json.dumps({"kills": figures.kills, "wall_s": wall_s, "violations": figures.violations})
        if asked.json
        else report(figures, wall_s=wall_s)
    )
    sys.exit(1 if figures.violations else 0)


if __name__ == "__main__":
    main()
