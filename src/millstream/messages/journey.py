"""Journey: what a request went through in the scheduler, beside its stamps: what it waited for, how its prompt was computed,
how much of that was known. Comes with the final row, encoded (`Timing.journey`): nobody on the way looks into it.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from msgspec import Struct

from millstream.messages.timing import Timing, Usage

# where a request is while it does not run
WaitPlace = Literal["waiting_grammar", "waiting", "paused"]
# what the first of the queue lacks: a slot in the batch, pages, tokens of the step (others' prompts take them), or a prefix
# that another request is just computing
Lack = Literal["slots", "pages", "tokens", "prefix"]
LACKS: tuple[Lack, ...] = ("slots", "pages", "tokens", "prefix")

MAX_WAITS = 32  # that are listed one by one; what is beyond goes into the last
MAX_CHUNKS = 64


class Wait(NamedTuple):
    """One time without a part in the steps. Times in seconds of `Timing`'s clock.

    `why` it began: arrived, compiled, retracted, preempted, paused, resumed. In the queue, `ahead` requests were before it as
    it came, and `lacked` says for how long the first of the queue lacked what, in the order of `LACKS`: all behind wait for
    that, too. `times` is more than 1 where waits were put together: then `seconds` is less than the span.
    """

    place: WaitPlace
    start: float
    end: float  # or now
    why: str
    seconds: float
    ahead: int = 0
    lacked: tuple[float, ...] = ()
    times: int = 1


class Chunk(NamedTuple):
    """Prompt tokens computed in one step, or in `steps` of them where they were put together."""

    start: float
    end: float
    num_tokens: int
    steps: int = 1


# why no more of a prompt was known when it was admitted. whole: all that can be was. page_boundary: less than a page is left.
# diverged: what is known goes on otherwise. extended: what is known ends there. evicted: more was known, and made room.
# namespace: it is known in another one. prompt_logprobs: its logits are asked for
CacheReason = Literal[
    "whole", "page_boundary", "diverged", "extended", "evicted", "nothing_cached", "namespace", "cache_off", "prompt_logprobs"
]


class Divergence(NamedTuple):
    """Where what is known of a prompt ends: at token `at`, with its tokens `before` and `after` that place, and those of the
    nearest known prefix, the `sibling`, that stand there instead.
    """

    reason: CacheReason
    at: int
    before: list[int] = []
    after: list[int] = []
    sibling: list[int] = []


class Journey(Struct, omit_defaults=True, gc=False):
    """All of it. After a retraction more chunks follow than the prompt has tokens."""

    waits: list[Wait] = []
    chunks: list[Chunk] = []
    cache: Divergence | None = None  # None: not admitted yet


class JourneysReq(Struct, frozen=True, omit_defaults=True, tag="journeys_req", gc=False):
    """Ask how far live requests are. entry -> scheduler; answered by a `JourneysReply`."""

    id: int
    entry: int  # the worker that asks


class LiveRequest(Struct, frozen=True, array_like=True, gc=False):
    """One request as it is now in the scheduler."""

    rid: str
    state: Literal["queued", "running", "paused"]
    timing: Timing  # with the journey so far
    usage: Usage


class JourneysReply(Struct, frozen=True, tag="journeys_reply", gc=False):
    """All live requests of all workers. scheduler -> entry."""

    id: int
    requests: list[LiveRequest]
