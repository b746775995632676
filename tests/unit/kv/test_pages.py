"""PageAllocator: pages change hands only between their owner and the next one."""

from __future__ import annotations

import pytest

from millstream.errors import InvariantError
from millstream.kv.pages import Owner, PageAllocator


def test_low_pages_go_out_first_and_come_back() -> None:
    pages = PageAllocator(4)
    assert pages.alloc("a", 2) == [0, 1]
    assert pages.num_free == 2
    pages.free("a", [0, 1])
    assert pages.num_free == 4
    pages.audit()


def test_a_page_goes_from_a_request_to_the_tree_and_is_free_after_eviction() -> None:
    pages = PageAllocator(2)
    pages.alloc("a", 2)
    pages.give_to_tree("a", [1])
    assert pages.owner(1) is Owner.TREE
    assert (pages.num_held("a"), pages.num_in_tree, pages.num_free) == (1, 1, 0)
    pages.free_from_tree([1])
    assert pages.alloc("b", 1) == [1]


def test_more_pages_than_are_free_are_refused_and_nothing_is_taken() -> None:
    pages = PageAllocator(2)
    with pytest.raises(InvariantError):
        pages.alloc("a", 3)
    assert pages.num_free == 2


def test_nobody_can_give_back_a_page_of_another() -> None:
    pages = PageAllocator(2)
    pages.alloc("a", 1)
    with pytest.raises(InvariantError):
        pages.free("b", [0])
    with pytest.raises(InvariantError):
        pages.free_from_tree([0])
    pages.free("a", [0])
    with pytest.raises(InvariantError):
        pages.free("a", [0])


def test_a_rid_named_like_an_owner_owns_only_its_own_pages() -> None:
    pages = PageAllocator(2)
    pages.alloc("tree", 1)
    with pytest.raises(InvariantError):
        pages.free_from_tree([0])
    pages.audit()


@pytest.mark.parametrize("spoil", ["duplicate", "lost", "owned"])
def test_the_audit_finds_spoiled_books(spoil: str) -> None:
    pages = PageAllocator(3)
    pages.alloc("a", 1)
    if spoil == "duplicate":
        pages._free.append(pages._free[0])
    elif spoil == "lost":
        pages._free.pop()
    else:
        pages._owner[pages._free[0]] = "a"
    with pytest.raises(InvariantError):
        pages.audit()
