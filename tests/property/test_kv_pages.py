"""PageAllocator under any sequence: free + owned == all, each page once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millstream.kv.pages import Owner, PageAllocator

OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["alloc", "free", "give", "evict"]), st.sampled_from("abc"), st.integers(0, 5)), max_size=40
)


@given(OPERATIONS)
def test_no_page_is_lost_or_shared(operations: list[tuple[str, str, int]]) -> None:
    pages = PageAllocator(8)
    held: dict[str, list[int]] = {"a": [], "b": [], "c": []}
    tree: list[int] = []
    for name, rid, count in operations:
        part = held[rid][:count]
        if name == "alloc" and count <= pages.num_free:
            held[rid] += pages.alloc(rid, count)
        elif name == "free":
            pages.free(rid, part)
            del held[rid][:count]
        elif name == "give":
            pages.give_to_tree(rid, part)
            del held[rid][:count]
            tree += part
        elif name == "evict":
            pages.free_from_tree(tree[:count])
            del tree[:count]
        pages.audit()
        everything = tree + [page for own in held.values() for page in own]
        assert len(set(everything)) == len(everything) == 8 - pages.num_free
        assert pages.num_in_tree == len(tree)
        assert all(pages.num_held(owner) == len(own) for owner, own in held.items())
        assert all(pages.owner(page) is Owner.TREE for page in tree)
        assert all(pages.owner(page) == owner for owner, own in held.items() for page in own)
