"""KVPool: the KV pages of one executor, lent to requests and shared between them through the prefix tree.

Called by the scheduler only. The one place where pages change hands: what a request holds is its `Lease`. Never decides who
gets pages; it does what the plan says and raises when the plan asked for more than there is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from millstream.errors import InvariantError
from millstream.kv.divergence import diverged
from millstream.kv.pages import Owner, PageAllocator
from millstream.kv.radix_cache import Match, Node, RadixCache
from millstream.kv.radix_view import view
from millstream.messages import RadixReply
from millstream.messages.journey import Divergence
from millstream.observe.ledger import Account, ReleaseCause

SHOWN_TOKENS = 16


@dataclass(slots=True, eq=False)
class Lease:
    """What one request holds. `pages` is its block table: the first `num_shared` belong to the tree, the rest to the rid."""

    rid: str
    namespace: str | None
    pages: list[int]  # the same list for the whole lease; forward rows refer to it
    num_shared: int
    node: Node | None  # the pin on the shared part
    account: Account  # of the request: pages and pins are written down where they change hands


class KVPool:
    """Pages and prefix tree of one executor. In the namespace None nothing ever matches and nothing is kept."""

    def __init__(self, *, num_pages: int, page_size: int, num_shown: int = SHOWN_TOKENS) -> None:
        self.num_pages: Final = num_pages
        self.page_size: Final = page_size
        self._num_shown = num_shown  # tokens of prompts on either side of the place where what is known of them ends
        self._pages = PageAllocator(num_pages)
        self._cache = RadixCache(page_size)

    @property
    def available(self) -> int:
        """Pages that `grow` can get: free ones and those of prefixes nobody uses."""
        return self._pages.num_free + self._cache.evictable_pages

    @property
    def num_free(self) -> int:
        """Pages that nobody owns."""
        return self._pages.num_free

    @property
    def num_owned(self) -> int:
        """Pages that leases hold beside what they share."""
        return self._pages.num_owned

    @property
    def num_pins(self) -> int:
        """Leases that hold a part of the prefix tree."""
        return self._cache.num_pins

    @property
    def num_cached(self) -> int:
        """Pages the prefix tree owns."""
        return self._cache.num_pages

    @property
    def tree_version(self) -> int:
        """Another number whenever `match` may find more or less than before."""
        return self._cache.version

    def pages_for(self, num_tokens: int) -> int:
        """Pages that `num_tokens` positions take."""
        return -(-num_tokens // self.page_size)

    def match(self, namespace: str | None, token_ids: Sequence[int], most: int | None = None) -> Match:
        """The longest reusable prefix of `token_ids`, of `most` tokens at most. Changes nothing.

        Without `most`, of all but the last, which is always computed, for its logits.
        """
        if namespace is None:
            return Match(None, [], 0, 0)
        return self._cache.match(namespace, token_ids, (len(token_ids) - 1 if most is None else most) // self.page_size)

    def diverged(self, namespace: str | None, token_ids: Sequence[int], num_known: int, num_skippable: int) -> Divergence:
        """Why no more of `token_ids` is known than `num_known`, where `num_skippable` could be. Changes nothing."""
        return diverged(
            self._cache,
            namespace,
            token_ids,
            num_known=num_known,
            num_skippable=num_skippable,
            num_shown=self._num_shown,
        )

    def open(self, account: Account, namespace: str | None, token_ids: Sequence[int], most: int | None = None) -> Lease:
        """Start a lease on what `match` finds, with no pages of its own yet. Mutates: pins that prefix."""
        match = self.match(namespace, token_ids, most)
        node = self._cache.pin(match)
        if node is not None:
            account.acquire("prefix_pin")
        return Lease(
            rid=account.rid,
            namespace=namespace,
            pages=match.pages,
            num_shared=len(match.pages),
            node=node,
            account=account,
        )

    def grow(self, lease: Lease, num_tokens: int) -> None:
        """Give a lease pages up to `num_tokens` positions. Mutates; evicts unused prefixes where nothing is free.

        Raises:
            InvariantError: not enough pages.
        """
        missing = self.pages_for(num_tokens) - len(lease.pages)
        if missing <= 0:
            return
        short = missing - self._pages.num_free
        if short > 0:
            self._pages.free_from_tree(self._cache.evict(short))
        lease.pages += self._pages.alloc(lease.rid, missing)
        lease.account.acquire("pages", missing)

    def shrink(self, lease: Lease, num_tokens: int) -> None:
        """Take back the pages of a lease that lie beyond `num_tokens` positions. Mutates.

        Raises:
            InvariantError: one of them is shared.
        """
        surplus = lease.pages[self.pages_for(num_tokens) :]
        if surplus:
            self._pages.free(lease.rid, surplus)
            del lease.pages[-len(surplus) :]
            lease.account.release("pages", "draft", len(surplus))

    def share(self, lease: Lease, token_ids: Sequence[int], num_tokens: int) -> None:
        """Put the full pages of the first `num_tokens` ids, whose KV is computed and final, into the tree.

        Mutates: those pages become the tree's, pinned by this lease. Where the tree already knew the tokens, the lease's
        duplicates are freed and its block table is switched to the tree's pages.
        """
        count = num_tokens // self.page_size
        if lease.namespace is None or count <= lease.num_shared:
            return
        before = self._cache.num_pages
        match = self._cache.insert(lease.namespace, token_ids, lease.pages[:count])
        num_known = count - (self._cache.num_pages - before)
        if num_known < lease.num_shared:
            raise InvariantError(f"the tree lost pinned pages of {lease.rid}")
        node = self._cache.pin(match)
        if lease.node is None:
            lease.account.acquire("prefix_pin")
        self._cache.unpin(lease.node)
        lease.account.release("pages", "shared", count - lease.num_shared)
        self._pages.free(lease.rid, lease.pages[lease.num_shared : num_known])
        self._pages.give_to_tree(lease.rid, lease.pages[num_known:count])
        lease.pages[:count] = match.pages
        lease.num_shared = count
        lease.node = node

    def close(self, lease: Lease, token_ids: Sequence[int], num_tokens: int, cause: ReleaseCause) -> None:
        """End a lease: share the full pages of the first `num_tokens` ids, free the rest, unpin. Mutates."""
        self.share(lease, token_ids, num_tokens)
        own = lease.pages[lease.num_shared :]
        self._pages.free(lease.rid, own)
        self._cache.unpin(lease.node)
        if own:
            lease.account.release("pages", cause)
        if lease.node is not None:
            lease.account.release("prefix_pin", cause)
        lease.pages.clear()
        lease.num_shared = 0
        lease.node = None

    def num_freed(self, leases: Sequence[Lease]) -> int:
        """How many pages more `grow` could get if these leases ended. Changes nothing."""
        own = sum(len(lease.pages) - lease.num_shared for lease in leases)
        return own + self._cache.num_unpinned_without([lease.node for lease in leases if lease.node is not None])

    def forget(self, namespace: str) -> None:
        """Free all that the tree knows of a namespace in which no lease is left. Mutates.

        Raises:
            InvariantError: a lease is.
        """
        self._pages.free_from_tree(self._cache.forget(namespace))

    def flush(self) -> int:
        """Forget every prefix that no lease uses, and free its pages. Mutates.

        Returns:
            How many pages that were.
        """
        pages = self._cache.evict(self._cache.num_pages)
        self._pages.free_from_tree(pages)
        return len(pages)

    def view(self, number: int, max_nodes: int) -> RadixReply:
        """The prefix tree, for who asked the question `number`. Changes nothing."""
        return view(self._cache, number, max_nodes)

    def audit_counts(self, *, idle: bool) -> None:
        """Check, in no time, that no page is lost; where nothing runs, also that every page is free or evictable.

        Raises:
            InvariantError: a page is lost or still held.
        """
        self._pages.audit_counts()
        if self._pages.num_in_tree != self._cache.num_pages:
            raise InvariantError(f"the tree has {self._cache.num_pages} pages and owns {self._pages.num_in_tree}")
        if idle and self.available != self.num_pages:
            raise InvariantError(f"{self.num_pages - self.available} pages are held and nothing runs")

    def audit(self, leases: Iterable[Lease]) -> None:
        """Check every page against every claim to it. O(num_pages); changes nothing.

        Raises:
            InvariantError: a page is lost, shared, or held by somebody not in `leases`.
        """
        leases = list(leases)
        self._pages.audit()
        self._cache.audit([lease.node for lease in leases if lease.node is not None])
        claims: dict[int, str | Owner] = dict.fromkeys(self._cache.pages(), Owner.TREE)
        num_claims = self._cache.num_pages
        for lease in leases:
            if lease.pages[: lease.num_shared] != self._cache.path(lease.node):
                raise InvariantError(f"{lease.rid} reads pages of the tree that are not those it has pinned")
            own = lease.pages[lease.num_shared :]
            num_claims += len(own)
            claims.update(dict.fromkeys(own, lease.rid))
        if len(claims) != num_claims:
            raise InvariantError("a page is claimed twice")
        if len(claims) + self._pages.num_free != self.num_pages:
            raise InvariantError("a page has an owner that does not claim it")
        if any(self._pages.owner(page) != claimant for page, claimant in claims.items()):
            raise InvariantError("a page is claimed by somebody who does not own it")
