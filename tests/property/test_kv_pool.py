"""KV books under any sequence of operations: no page lost or shared, matches equal a naive list's, pins hold."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from millstream.kv.pool import KVPool, Lease
from millstream.kv.radix_cache import Node, RadixCache
from millstream.observe.ledger import Ledger

TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=12)
NAMESPACES = st.sampled_from(["", "a"])


class PoolMachine(RuleBasedStateMachine):
    """Leases opened, grown, shared and closed on a small pool."""

    @initialize(num_pages=st.integers(1, 16), page_size=st.integers(1, 3))
    def start(self, num_pages: int, page_size: int) -> None:
        self.pool = KVPool(num_pages=num_pages, page_size=page_size)
        self.ledger = Ledger("test", strict=True)
        self.ledger.watch("pages", lambda: self.pool.num_owned)
        self.ledger.watch("prefix_pin", lambda: self.pool.num_pins)
        self.leases: dict[str, tuple[Lease, list[int]]] = {}
        self.serial = 0

    @rule(tokens=TOKENS, namespace=st.one_of(st.none(), NAMESPACES))
    def open(self, tokens: list[int], namespace: str | None) -> None:
        before = self.pool.available
        match = self.pool.match(namespace, tokens)
        assert len(match.pages) <= (len(tokens) - 1) // self.pool.page_size
        self.serial += 1
        lease = self.pool.open(self.ledger.open(f"r{self.serial}"), namespace, tokens)
        assert lease.pages == match.pages
        assert self.pool.available == before - match.num_unpinned
        self.leases[lease.rid] = (lease, tokens)

    @precondition(lambda self: bool(self.leases))
    @rule(data=st.data(), more=TOKENS)
    def grow(self, data: st.DataObject, more: list[int]) -> None:
        lease, tokens = self.leases[data.draw(st.sampled_from(sorted(self.leases)))]
        need = self.pool.pages_for(len(tokens)) - len(lease.pages)
        if need > self.pool.available:
            return
        self.pool.grow(lease, len(tokens))
        assert len(lease.pages) == max(len(lease.pages), self.pool.pages_for(len(tokens)))
        if self.pool.pages_for(len(tokens) + len(more)) - len(lease.pages) <= self.pool.available:
            tokens += more
            self.pool.grow(lease, len(tokens))

    @precondition(lambda self: bool(self.leases))
    @rule(data=st.data(), extra=st.integers(1, 6))
    def grow_and_shrink(self, data: st.DataObject, extra: int) -> None:
        lease, _ = self.leases[data.draw(st.sampled_from(sorted(self.leases)))]
        before, available = list(lease.pages), self.pool.available
        held = len(before) * self.pool.page_size
        if self.pool.pages_for(held + extra) - len(before) > available:
            return
        self.pool.grow(lease, held + extra)
        self.pool.shrink(lease, held)
        assert (lease.pages, self.pool.available) == (before, available)

    @precondition(lambda self: bool(self.leases))
    @rule(data=st.data(), is_end=st.booleans())
    def share_or_close(self, data: st.DataObject, is_end: bool) -> None:
        rid = data.draw(st.sampled_from(sorted(self.leases)))
        lease, tokens = self.leases[rid]
        held = min(len(tokens), len(lease.pages) * self.pool.page_size)
        num_tokens = data.draw(st.integers(0, held))
        table = lease.pages
        if not is_end:
            num_pages = len(table)
            self.pool.share(lease, tokens, num_tokens)
            assert lease.pages is table and len(table) == num_pages
            return
        self.pool.close(lease, tokens, num_tokens, "stop")
        lease.account.settle("stop")
        assert table == []
        del self.leases[rid]

    @rule(namespace=NAMESPACES)
    def forget(self, namespace: str) -> None:
        if any(lease.namespace == namespace for lease, _ in self.leases.values()):
            return
        before = self.pool.available
        self.pool.forget(namespace)
        assert self.pool.available == before
        assert self.pool.match(namespace, [0] * 4).pages == []

    @invariant()
    def every_page_has_one_owner(self) -> None:
        if hasattr(self, "pool"):
            self.pool.audit([lease for lease, _ in self.leases.values()])
            self.pool.audit_counts(idle=False)

    @invariant()
    def the_ledger_says_what_the_pool_has(self) -> None:
        if hasattr(self, "pool"):
            assert self.ledger.reconcile() == 0

    def teardown(self) -> None:
        if hasattr(self, "pool"):
            for lease, tokens in self.leases.values():
                self.pool.close(lease, tokens, 0, "drain")
            self.pool.audit([])
            self.pool.audit_counts(idle=True)
            assert self.ledger.totals() == {}


class RadixMachine(RuleBasedStateMachine):
    """The tree beside a plain list of everything it knows."""

    @initialize(page_size=st.integers(1, 3))
    def start(self, page_size: int) -> None:
        self.page_size = page_size
        self.cache = RadixCache(page_size)
        self.known: dict[tuple[str, tuple[int, ...]], int] = {}  # namespace and tokens up to the end of a page -> the page
        self.pinned: list[tuple[Node, list[int]]] = []
        self.next_page = 0

    def naive_match(self, namespace: str, tokens: list[int], max_pages: int) -> list[int]:
        pages: list[int] = []
        for end in range(self.page_size, len(tokens) + 1, self.page_size):
            page = self.known.get((namespace, tuple(tokens[:end])))
            if page is None or len(pages) == max_pages:
                break
            pages.append(page)
        return pages

    @rule(tokens=TOKENS, namespace=NAMESPACES)
    def insert(self, tokens: list[int], namespace: str) -> None:
        count = len(tokens) // self.page_size
        pages = list(range(self.next_page, self.next_page + count))
        self.next_page += count
        expected = self.naive_match(namespace, tokens, count)
        expected += pages[len(expected) :]
        assert self.cache.insert(namespace, tokens, pages).pages == expected
        for index, page in enumerate(expected):
            self.known[namespace, tuple(tokens[: (index + 1) * self.page_size])] = page

    @rule(tokens=TOKENS, namespace=NAMESPACES, data=st.data())
    def match_and_pin(self, tokens: list[int], namespace: str, data: st.DataObject) -> None:
        max_pages = data.draw(st.integers(0, len(tokens) // self.page_size))
        match = self.cache.match(namespace, tokens, max_pages)
        assert match.pages == self.naive_match(namespace, tokens, max_pages)
        before = self.cache.evictable_pages
        node = self.cache.pin(match)
        assert self.cache.evictable_pages == before - match.num_unpinned
        if node is None:
            assert not match.pages
        else:
            self.pinned.append((node, match.pages))

    @precondition(lambda self: bool(self.pinned))
    @rule(data=st.data())
    def unpin(self, data: st.DataObject) -> None:
        node, _ = self.pinned.pop(data.draw(st.integers(0, len(self.pinned) - 1)))
        self.cache.unpin(node)

    @rule(count=st.integers(0, 6))
    def evict(self, count: int) -> None:
        evictable = self.cache.evictable_pages
        evicted = self.cache.evict(count)
        assert len(evicted) == min(count, evictable)
        self.known = {key: page for key, page in self.known.items() if page not in evicted}

    @invariant()
    def the_tree_knows_what_the_list_knows(self) -> None:
        if hasattr(self, "cache"):
            self.cache.audit([node for node, _ in self.pinned])
            pages = self.cache.pages()
            assert sorted(pages) == sorted(self.known.values())
            pinned = {page for _, held in self.pinned for page in held}
            assert pinned <= set(pages)
            assert self.cache.evictable_pages == len(pages) - len(pinned)


PoolMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)
RadixMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)
TestPoolMachine = PoolMachine.TestCase
TestRadixMachine = RadixMachine.TestCase
