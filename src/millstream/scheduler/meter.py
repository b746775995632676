"""Meter: what the scheduler counts of its steps for /metrics. Owned by the scheduler, which says what it counts elsewhere."""

from __future__ import annotations

from collections.abc import Iterator

from millstream.kv.pool import KVPool
from millstream.messages import Measures, StatsReply
from millstream.messages.measures import Sample
from millstream.observe import families
from millstream.observe.tally import Tally, sample


class Meter:
    """Counts of one scheduler. Integers and two histograms: a step costs a microsecond here, a token an addition."""

    def __init__(self, tally: Tally | None = None) -> None:
        self.completion_tokens = 0
        self._prefilled = 0
        self._decoded = 0
        self._tally = tally or Tally("scheduler")
        self._step_seconds = self._tally.histogram(families.STEP_SECONDS)
        self._step_rows = self._tally.histogram(families.STEP_ROWS)

    def note_step(self, *, num_rows: int, num_prefilled: int, num_decoded: int, seconds: float) -> None:
        """A step of `num_rows` requests is over; the numbers are positions."""
        self._step_seconds.observe(seconds)
        self._step_rows.observe(num_rows)
        self._prefilled += num_prefilled
        self._decoded += num_decoded

    def measures(
        self, stats: StatsReply, pool: KVPool, held: dict[str, int], *, compiling: int, prompt_tokens: int, cached_tokens: int
    ) -> Measures | None:
        """All counts now, with those in `stats` and those given; of the requests that wait, `compiling` do for a grammar."""
        counts = {
            families.STEPS: stats.steps,
            families.RETRACTIONS: stats.retractions,
            families.PREEMPTIONS: stats.preemptions,
            families.DRAFT_TOKENS: stats.draft_tokens,
            families.ACCEPTED_DRAFT_TOKENS: stats.accepted_draft_tokens,
            families.FORCED_TOKENS: stats.forced_tokens,
            families.PROMPT_TOKENS: prompt_tokens,
            families.CACHED_TOKENS: cached_tokens,
            families.COMPLETION_TOKENS: self.completion_tokens,
            families.RUNNING: stats.running,
            families.WAITING: stats.waiting - compiling,
            families.COMPILING: compiling,
            families.PAUSED: stats.paused,
            families.UNDELIVERED: stats.undelivered,
            families.USAGE: 1 - pool.available / pool.num_pages,
        }
        return self._tally.measures(
            [*(sample(each, value) for each, value in counts.items()), *self._labelled(stats, pool, held)]
        )

    def _labelled(self, stats: StatsReply, pool: KVPool, held: dict[str, int]) -> Iterator[Sample]:
        yield sample(families.COMPUTED_TOKENS, self._prefilled, "prefill")
        yield sample(families.COMPUTED_TOKENS, self._decoded, "decode")
        yield sample(families.PAGES, pool.num_free, "free")
        yield sample(families.PAGES, pool.available - pool.num_free, "evictable")
        yield sample(families.PAGES, pool.num_pages - pool.available, "used")
        yield sample(families.LIVE, stats.scheduler_requests, "scheduler")
        yield sample(families.MISMATCHES, stats.ledger_mismatches, "scheduler")
        for kind, amount in held.items():
            yield sample(families.HELD, amount, "scheduler", kind)
