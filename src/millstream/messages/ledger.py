"""What a process holds on behalf of requests, as it travels with a `StatsReply` to whoever asked."""

from __future__ import annotations

from msgspec import Struct

MAX_HELD = 10_000  # entries of one answer; what is beyond is counted


class Held(Struct, frozen=True, gc=False):
    """Something that a process holds for a request. `rid` is empty where it is for none, such as a body of `/tokenize`."""

    rid: str
    process: str
    kind: str
    amount: int
    since_s: float  # seconds for which it has been held


class LedgerQuery(Struct, frozen=True, omit_defaults=True, gc=False):
    """What to list: everything, or what is held for exactly `rid`."""

    rid: str = ""


class Book(Struct, gc=False):
    """The books of one process at one moment. Totals are of everything, also where a rid was asked for."""

    process: str
    held: list[Held]  # the oldest entries first
    left_out: int  # entries beyond `MAX_HELD`
    totals: dict[str, int]  # kind -> amount
    released: dict[str, dict[str, int]]  # kind -> cause -> amount given back since the start
