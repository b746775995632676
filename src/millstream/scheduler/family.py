"""Family: the choices of one call that have the same prompt. One of them computes it, the others fork from there.

Kept by the scheduler; placement asks a family who has the prompt in its pages. A fork shares the prompt's full pages through
the prefix tree, as any request does, and gets a copy of the last page, which every choice goes on to fill for itself.
Whoever comes first computes the prompt; when it ends, is paused or retracted before it has, the next one does.

Where the server shares no prefixes a family still does: in a namespace of its own, which ends with it.
"""

from __future__ import annotations

from collections.abc import Iterable

from millstream.errors import InvariantError
from millstream.kv.pool import KVPool
from millstream.messages.details import LogprobParams
from millstream.scheduler.logprobs import PromptLogprobs
from millstream.scheduler.state import Req


class Family:
    """The live choices of one prompt of one call, in order of arrival."""

    def __init__(self, prompt: list[int], namespace: str | None, asked_namespace: str | None = "") -> None:
        self.prompt = prompt
        self.namespace = namespace  # of the prefix tree
        self.asked_namespace = asked_namespace  # by its requests: ids alone need not say what a prompt is
        self.members: dict[str, Req] = {}
        self._tables: dict[LogprobParams, PromptLogprobs] = {}

    def share_prompt_logprobs(self, req: Req) -> None:
        """Let all members that ask for the same share one table of the prompt.s log probabilities."""
        if req.logprobs is not None and req.logprobs.prompt is not None:
            req.logprobs.prompt = self._tables.setdefault(req.logprobs.params, req.logprobs.prompt)

    def is_of(self, newcomer: Req) -> bool:
        """Whether a newcomer of the call has this prompt."""
        return newcomer.namespace == self.asked_namespace and newcomer.token_ids == self.prompt

    def holder(self, num_tokens: int) -> Req | None:
        """A member whose pages hold the KV of the first `num_tokens` tokens of the prompt."""
        for req in self.members.values():
            if req.lease is not None and req.num_computed >= num_tokens:
                return req
        return None


class Families:
    """The families of all live requests. A call of one request has none."""

    def __init__(self, *, pool: KVPool, share_prefixes: bool) -> None:
        self._pool = pool
        self._share_prefixes = share_prefixes
        self._by_call: dict[tuple[int, str], list[Family]] = {}  # by entry and call; one for each prompt
        self._num_made = 0

    def join(self, req: Req) -> None:
        """Find a newcomer's family, and the namespace in which it shares prefixes."""
        if req.call:
            families = self._by_call.setdefault((req.entry, req.call), [])
            family = next((each for each in families if each.is_of(req)), None)
            if family is None:
                family = self._new(req)
                families.append(family)
            family.members[req.rid] = req
            family.share_prompt_logprobs(req)
            req.family = family
            req.namespace = family.namespace
        elif not self._share_prefixes:
            req.namespace = None

    def leave(self, req: Req) -> None:
        """Let go of a request that has ended and holds nothing any more."""
        family, req.family = req.family, None
        if family is None:
            return
        del family.members[req.rid]
        if family.members:
            return
        if not self._share_prefixes and family.namespace is not None:
            self._pool.forget(family.namespace)
        families = self._by_call[req.entry, req.call]
        families.remove(family)
        if not families:
            del self._by_call[req.entry, req.call]

    def audit(self, live: Iterable[Req]) -> None:
        """Check the families against `live`. O(requests).

        Raises:
            InvariantError: a family has somebody who is not live or not its own, or misses somebody.
        """
        members = [req for families in self._by_call.values() for family in families for req in family.members.values()]
        if {req.rid for req in members} != {req.rid for req in live if req.call} or len(members) != len({*members}):
            raise InvariantError("the families and the live requests differ")
        for req in members:
            if req.family is None or req.token_ids[: req.num_prompt_tokens] != req.family.prompt:
                raise InvariantError(f"{req.rid} is in a family of another prompt")

    def _new(self, req: Req) -> Family:
        self._num_made += 1
        namespace = req.namespace if self._share_prefixes else f"family {self._num_made}"
        return Family(list(req.token_ids), namespace, req.namespace)
