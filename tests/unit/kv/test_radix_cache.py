"""RadixCache: what matches, what a pin keeps and what is evicted first."""

from __future__ import annotations

import pytest

from millstream.errors import InvariantError
from millstream.kv.radix_cache import RadixCache


def test_only_whole_pages_match() -> None:
    cache = RadixCache(2)
    cache.insert("", [1, 2, 3, 4], [10, 11])
    assert cache.match("", [1, 2, 3, 9], 2).pages == [10]
    assert cache.match("", [1, 2, 3, 4], 1).pages == [10]
    assert cache.match("", [1, 9], 1).pages == []


def test_namespaces_share_nothing() -> None:
    cache = RadixCache(2)
    cache.insert("a", [1, 2], [10])
    assert cache.match("b", [1, 2], 1).pages == []
    assert cache.match("a", [1, 2], 1).pages == [10]


def test_inserting_known_tokens_keeps_the_tree_s_own_pages() -> None:
    cache = RadixCache(1)
    cache.insert("", [1, 2], [10, 11])
    assert cache.insert("", [1, 2, 3], [20, 21, 22]).pages == [10, 11, 22]
    assert cache.insert("", [1, 5], [30, 31]).pages == [10, 31]
    assert sorted(cache.pages()) == [10, 11, 22, 31]
    cache.audit()


def test_matching_changes_nothing() -> None:
    cache = RadixCache(1)
    cache.insert("", [1], [10])
    cache.insert("", [2], [20])
    cache.match("", [1], 1)
    assert cache.evict(1) == [10]  # a look is not a use


def test_the_least_recently_used_leaf_goes_first_and_from_its_end() -> None:
    cache = RadixCache(1)
    cache.insert("", [1, 2, 3], [10, 11, 12])
    cache.insert("", [7], [20])
    cache.unpin(cache.pin(cache.match("", [1, 2, 3], 3)))
    assert cache.evict(2) == [20, 12]
    assert cache.match("", [1, 2, 3], 3).pages == [10, 11]


def test_a_pin_keeps_the_matched_part_and_its_ancestors_but_not_what_follows() -> None:
    cache = RadixCache(1)
    cache.insert("", [1, 2, 3, 4], [10, 11, 12, 13])
    node = cache.pin(cache.match("", [1, 2, 9], 3))
    assert cache.evictable_pages == 2
    assert sorted(cache.evict(10)) == [12, 13]
    assert cache.evict(10) == []
    cache.unpin(node)
    assert sorted(cache.evict(10)) == [10, 11]
    cache.audit()


def test_a_split_of_a_pinned_node_keeps_the_pin_whole() -> None:
    cache = RadixCache(1)
    cache.insert("", [1, 2, 3], [10, 11, 12])
    long = cache.pin(cache.match("", [1, 2, 3], 3))
    short = cache.pin(cache.match("", [1], 1))
    cache.unpin(long)
    assert sorted(cache.evict(10)) == [11, 12]
    cache.unpin(short)
    assert cache.evict(10) == [10]


def test_a_parent_can_go_once_its_last_child_is_gone() -> None:
    cache = RadixCache(1)
    cache.insert("", [1, 2], [10, 11])
    cache.insert("", [1, 3], [10, 12])
    assert len(cache.evict(3)) == 3
    assert (cache.num_pages, cache.evictable_pages) == (0, 0)
    cache.audit()


def test_an_empty_match_pins_nothing() -> None:
    cache = RadixCache(1)
    assert cache.pin(cache.match("", [1], 1)) is None
    cache.unpin(None)


def test_unpinning_twice_is_our_bug() -> None:
    cache = RadixCache(1)
    cache.insert("", [1], [10])
    node = cache.pin(cache.match("", [1], 1))
    cache.unpin(node)
    with pytest.raises(InvariantError):
        cache.unpin(node)


def test_the_audit_finds_a_wrong_count() -> None:
    cache = RadixCache(1)
    cache.insert("", [1], [10])
    cache.evictable_pages = 0
    with pytest.raises(InvariantError):
        cache.audit()


def test_the_oldest_leaf_goes_first_whatever_its_namespace_and_pins_hold_it() -> None:
    cache = RadixCache(1)
    for number, namespace in enumerate(("a", "b", "a", "c")):
        cache.insert(namespace, [1, number], [10 * number, 10 * number + 1])  # the second of `a` shares its first page
    held = cache.pin(cache.match("b", [1, 1], 2))
    cache.unpin(cache.pin(cache.match("a", [1, 0], 2)))  # used now, though it came first
    assert cache.evict(1) == [21]
    assert sorted(cache.evict(2)) == [30, 31]
    assert sorted(cache.evict(9)) == [0, 1]
    cache.unpin(held)
    assert sorted(cache.evict(9)) == [10, 11]
    cache.audit()
