"""KVPool: leases, sharing, duplicates and the disabled mode."""

from __future__ import annotations

import pytest

from millstream.errors import InvariantError
from millstream.kv.pool import KVPool
from millstream.observe.ledger import Ledger

LEDGER = Ledger("test", strict=True)


def test_the_last_token_is_never_taken_from_the_tree() -> None:
    pool = KVPool(num_pages=4, page_size=2)
    lease = pool.open(LEDGER.open("a"), "", [1, 2, 3, 4])
    pool.grow(lease, 4)
    pool.close(lease, [1, 2, 3, 4], 4, "stop")
    assert len(pool.match("", [1, 2, 3, 4]).pages) == 1
    assert len(pool.match("", [1, 2, 3, 4, 5]).pages) == 2


def test_duplicates_go_back_and_the_block_table_is_switched() -> None:
    pool = KVPool(num_pages=6, page_size=2)
    first, second = pool.open(LEDGER.open("a"), "", [1, 2, 3]), pool.open(LEDGER.open("b"), "", [1, 2, 3])
    pool.grow(first, 3)
    pool.grow(second, 3)
    pool.share(first, [1, 2, 3], 2)
    table = second.pages
    pool.share(second, [1, 2, 3], 2)
    assert second.pages is table
    assert second.pages[0] == first.pages[0]
    assert second.pages[1] != first.pages[1]
    assert pool.available == 6 - 3
    pool.audit([first, second])


def test_unused_prefixes_are_evicted_when_nothing_is_free() -> None:
    pool = KVPool(num_pages=2, page_size=1)
    lease = pool.open(LEDGER.open("a"), "", [1, 2])
    pool.grow(lease, 2)
    pool.close(lease, [1, 2], 2, "stop")
    assert (pool.available, pool.num_cached) == (2, 2)
    other = pool.open(LEDGER.open("b"), "", [8, 9])
    pool.grow(other, 2)
    assert (pool.available, pool.num_cached) == (0, 0)
    pool.audit([other])


def test_asking_for_more_than_there_is_is_our_bug() -> None:
    pool = KVPool(num_pages=2, page_size=1)
    lease = pool.open(LEDGER.open("a"), "", [1])
    with pytest.raises(InvariantError):
        pool.grow(lease, 3)
    pool.audit([lease])


def test_a_lease_gives_back_what_it_has_beyond_so_many_tokens_but_nothing_that_is_shared() -> None:
    pool = KVPool(num_pages=4, page_size=2)
    lease = pool.open(LEDGER.open("a"), "", [1, 2, 3])
    pool.grow(lease, 7)
    table = lease.pages
    pool.shrink(lease, 4)
    assert lease.pages is table
    assert (len(table), pool.available) == (2, 2)
    pool.shrink(lease, 3)
    assert len(table) == 2
    pool.share(lease, [1, 2, 3], 2)
    with pytest.raises(InvariantError):
        pool.shrink(lease, 0)


def test_without_sharing_nothing_matches_and_nothing_stays() -> None:
    pool = KVPool(num_pages=2, page_size=1)
    lease = pool.open(LEDGER.open("a"), None, [1, 2])
    pool.grow(lease, 2)
    pool.share(lease, [1, 2], 2)
    pool.close(lease, [1, 2], 2, "stop")
    assert (pool.available, pool.num_cached) == (2, 0)
    assert pool.match(None, [1, 2]).pages == []
    pool.audit_counts(idle=True)


def test_a_namespace_is_forgotten_as_a_whole_and_no_other() -> None:
    pool = KVPool(num_pages=8, page_size=1)
    for namespace, token_ids in (("f", [1, 2, 3]), ("f", [1, 9]), ("g", [1, 2])):
        lease = pool.open(LEDGER.open("a"), namespace, token_ids)
        pool.grow(lease, len(token_ids))
        pool.close(lease, token_ids, len(token_ids), "stop")
    assert pool.num_cached == 6
    pool.forget("f")
    pool.forget("nobody's")
    assert (pool.num_cached, pool.available) == (2, 8)
    assert len(pool.match("g", [1, 2, 3]).pages) == 2
    pool.audit([])
    pool.grow(pool.open(LEDGER.open("b"), None, [5]), 8)  # what was forgotten is not up for eviction any more
    assert pool.num_cached == 0


def test_a_namespace_in_use_cannot_be_forgotten() -> None:
    pool = KVPool(num_pages=4, page_size=1)
    lease = pool.open(LEDGER.open("a"), "f", [1, 2])
    pool.grow(lease, 2)
    pool.share(lease, [1, 2], 2)
    with pytest.raises(InvariantError):
        pool.forget("f")


def test_the_audit_finds_a_pin_without_a_holder_and_a_block_table_that_is_not_its_pin_s() -> None:
    pool = KVPool(num_pages=4, page_size=1)
    lease = pool.open(LEDGER.open("a"), "", [1, 2, 3])
    pool.grow(lease, 3)
    pool.share(lease, [1, 2, 3], 2)
    pool.audit([lease])
    lease.pages[:2] = reversed(lease.pages[:2])
    with pytest.raises(InvariantError):
        pool.audit([lease])
    lease.pages[:2] = reversed(lease.pages[:2])
    pool.open(LEDGER.open("b"), "", [1, 2, 3])
    with pytest.raises(InvariantError):
        pool.audit([lease])


def test_the_audits_find_a_page_that_is_still_held() -> None:
    pool = KVPool(num_pages=2, page_size=1)
    pool.grow(pool.open(LEDGER.open("a"), "", [1]), 1)
    pool.audit_counts(idle=False)
    with pytest.raises(InvariantError):
        pool.audit_counts(idle=True)
    with pytest.raises(InvariantError):
        pool.audit([])
