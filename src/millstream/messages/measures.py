"""What a process has counted, as it travels to whoever answers /metrics, and to the supervisor, who keeps it for the dead."""

from __future__ import annotations

from msgspec import Struct


class Sample(Struct, frozen=True, array_like=True, gc=False):
    """A number of a family in `observe.families`: a count since the process's start, or how it is now."""

    family: str
    labels: tuple[str, ...]  # in the order of the family's
    value: float


class Distribution(Struct, frozen=True, array_like=True, gc=False):
    """A histogram of a family: `counts` of each of its buckets alone, the last one of what is above all bounds."""

    family: str
    labels: tuple[str, ...]
    counts: list[int]
    total: float


class Measures(Struct, frozen=True, tag="measures", gc=False):
    """All that one process counts at one moment. child -> supervisor, whenever the child tells anybody; in other answers."""

    process: str  # its kind, such as `entry`
    pid: int
    samples: list[Sample]
    distributions: list[Distribution]
