"""Scheduling under load, simulated: what steps cost is given, time is the simulation's, so no figure depends on the machine.

python benchmarks/scheduler/scenarios.py [long | pages | priorities | starvation | prefixes]
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from parts import VOCAB_SIZE, SimulatedExecutor, Wire, make_scheduler, request

from millstream.messages import TokenizedGenerateReqInput
from millstream.messages.columns import unpack_slots
from millstream.scheduler.order import Order, SchedulePolicy

PRICE = (0.004, 0.0003, 0.0006)  # seconds a step, a decode token, a prompt token


@dataclass
class Seen:
    """What became of one request, in seconds of the simulation."""

    arrived: float
    kind: str
    tokens: list[float] = field(default_factory=list)
    cached: int = 0

    @property
    def ttft(self) -> float:
        """To its first token."""
        return self.tokens[0] - self.arrived


class Simulation:
    """A scheduler, and requests that come at their times."""

    def __init__(
        self,
        *,
        num_pages: int = 1 << 14,
        slots: int = 32,
        target_itl_s: float | None = 0.1,
        policy: SchedulePolicy = "fcfs",
        oldest_every: int = 8,
    ) -> None:
        self.executor = SimulatedExecutor(num_pages, PRICE)
        self.seen: list[Seen] = []
        self._arrivals: list[tuple[float, TokenizedGenerateReqInput, str]] = []
        self.scheduler = make_scheduler(
            self.executor,
            slots=slots,
            chunk=256,
            target_itl_s=target_itl_s,
            order=Order(policy, oldest_every=oldest_every),
            to_detokenizer=Wire(self._look),
            clock=self.executor.clock,
        )

    def add(self, at: float, kind: str, prompt: Sequence[int], *, max_new: int, priority: int = 0) -> None:
        """Have a request come."""
        self._arrivals.append((at, request(0, prompt, max_new=max_new, priority=priority), kind))

    def run(self) -> None:
        """All of it, to the last end."""
        arrivals = sorted(self._arrivals, key=lambda arrival: arrival[0])
        next_one = 0
        while next_one < len(arrivals) or self.scheduler.has_work:
            if not self.scheduler.has_work:
                self.executor.now = max(self.executor.now, arrivals[next_one][0])
            while next_one < len(arrivals) and arrivals[next_one][0] <= self.executor.now:
                at, message, kind = arrivals[next_one]
                message.rid, message.slot = f"r{next_one}", next_one
                self.seen.append(Seen(at, kind))
                self.scheduler.handle(message)
                next_one += 1
            self.scheduler.step()

    def ttft(self, kind: str) -> str:
        """Median and 99th percentile of the time to the first token, in seconds."""
        return pair([each.ttft for each in self.seen if each.kind == kind])

    def itl(self, kind: str) -> str:
        """Median and 99th percentile of the time between two tokens, in seconds."""
        return pair(
            [b - a for each in self.seen if each.kind == kind for a, b in zip(each.tokens, each.tokens[1:], strict=False)]
        )

    def _look(self, message: Any) -> None:
        for row in message.rows:
            seen = self.seen[int(row.rid[1:])]
            seen.cached = row.usage.cached_tokens
            seen.tokens += [self.executor.now] * len(row.token_ids)
        for columns in message.columns:
            for slot in unpack_slots(columns.slots):
                self.seen[slot].tokens.append(self.executor.now)


def pair(values: Sequence[float]) -> str:
    """p50 / p99."""
    ordered = sorted(values)
    return f"{ordered[len(ordered) // 2]:.3f} / {ordered[len(ordered) * 99 // 100]:.3f}"


def prompt(rng: random.Random, length: int) -> list[int]:
    """Ids that nobody else has."""
    return [rng.randrange(300, VOCAB_SIZE) for _ in range(length)]


def long_among_short() -> None:
    """Prompts of 4,000 tokens among many short requests."""
    print("long prompts among short ones: s, p50 / p99   ITL short          TTFT short         TTFT long")
    for target in (None, 0.1, 0.05):
        rng, sim = random.Random(1), Simulation(target_itl_s=target)
        for number in range(300):
            sim.add(0.2 * number, "short", prompt(rng, 60), max_new=40)
        for number in range(10):
            sim.add(3 + 5 * number, "long", prompt(rng, 4000), max_new=20)
        sim.run()
        name = "full chunks" if target is None else f"target ITL {target * 1000:.0f} ms"
        print(f"  {name:42} {sim.itl('short'):18} {sim.ttft('short'):18} {sim.ttft('long')}")


def short_of_pages() -> None:
    """64 requests at once, on pools that hold all, half, a quarter of what they come to."""
    print("64 requests of 200 + 300 tokens at once:      done after, s   retractions   tokens computed")
    for share in (1.0, 0.5, 0.25):
        rng, sim = random.Random(2), Simulation(num_pages=int(64 * 33 * share), slots=64)
        for _ in range(64):
            sim.add(0.0, "all", prompt(rng, 200), max_new=300)
        sim.run()
        retractions = sim.scheduler._placement.num_retractions
        print(
            f"  pages for {share:4.0%} of them {'':22} {sim.executor.now:9.1f} {retractions:15} {sim.executor.num_computed:13}"
        )


def priorities() -> None:
    """An interactive request a second over background work that fills the server for as long."""
    print("interactive over background work:             TTFT interactive   TTFT background, s, p50 / p99   all done after, s")
    for name, priority in (("one queue", 0), ("priorities", 1)):
        rng, sim = random.Random(3), Simulation(slots=8)
        for number in range(400):
            sim.add(0.1 * number, "background", prompt(rng, 300), max_new=100)
        for number in range(60):
            sim.add(1.0 * number + 0.5, "interactive", prompt(rng, 200), max_new=60, priority=priority)
        sim.run()
        print(f"  {name:44} {sim.ttft('interactive'):18} {sim.ttft('background'):30} {sim.executor.now:.1f}")


def starvation() -> None:
    """A flood of high priority, more than the server can do, and ten requests of low priority that came first."""
    print("a flood of high priority:                     longest wait of the low ones, s   TTFT high, s, p50 / p99")
    for oldest_every in (1 << 20, 8, 2):
        rng, sim = random.Random(5), Simulation(slots=8, oldest_every=oldest_every)
        for number in range(400):
            sim.add(0.1 * number, "high", prompt(rng, 200), max_new=60, priority=1)
        for _ in range(10):
            sim.add(2.0, "low", prompt(rng, 200), max_new=60)
        sim.run()
        longest = max(each.ttft for each in sim.seen if each.kind == "low")
        name = "no turns of the oldest" if oldest_every == 1 << 20 else f"--oldest-first-every {oldest_every}"
        print(f"  {name:44} {longest:10.1f} {'':21} {sim.ttft('high')}")


def prefixes() -> None:
    """Questions on 24 documents, of which the pool holds a third."""
    print("questions on 24 documents of 1,000 tokens:    tokens from the cache   TTFT, s, p50 / p99   longest wait, s")
    for policy in ("fcfs", "lpm"):
        rng = random.Random(4)
        sim = Simulation(policy=policy, slots=4, num_pages=8 * 64 + 4 * 12)  # type: ignore[arg-type]
        documents = [prompt(rng, 1000) for _ in range(24)]
        total = 0
        for number in range(400):
            asked = [*rng.choice(documents), *prompt(rng, 30)]
            total += len(asked)
            sim.add(0.15 * number, "all", asked, max_new=20)
        sim.run()
        hit = sum(each.cached for each in sim.seen) / total
        longest = max(each.ttft for each in sim.seen)
        print(f"  {policy:44} {hit:10.0%} {'':12} {sim.ttft('all'):20} {longest:.1f}")


SCENARIOS = {
    "long": long_among_short,
    "pages": short_of_pages,
    "priorities": priorities,
    "starvation": starvation,
    "prefixes": prefixes,
}


def main() -> None:
    """Print a table for each scenario."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenario", nargs="*", choices=[[], *SCENARIOS], help="default: all of them")
    for name in parser.parse_args().scenario or SCENARIOS:
        SCENARIOS[name]()


if __name__ == "__main__":
    main()
