"""What is shown of the prefix tree: the nodes used last, each behind its parent, never more than asked for."""

from __future__ import annotations

from millstream.kv.radix_cache import RadixCache
from millstream.kv.radix_view import view
from millstream.messages.radix import MAX_NODE_TOKENS, MAX_NODES

PAGE = 2


def tree(*prompts: list[int], namespaces: tuple[str, ...] = ("",)) -> RadixCache:
    cache = RadixCache(PAGE)
    page = 0
    for prompt in prompts:
        for namespace in namespaces:
            count = len(prompt) // PAGE
            cache.insert(namespace, prompt, range(page, page + count))
            page += count
    return cache


def test_a_tree_of_two_prompts_has_what_they_share_and_what_follows() -> None:
    cache = tree([1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 7, 8])
    pinned = cache.pin(cache.match("", [1, 2, 3, 4, 7, 8], 3))
    reply = view(cache, 9, 10)
    assert (reply.id, reply.num_pages, reply.num_evictable_pages, reply.num_pins) == (9, 4, 1, 1)
    assert [(node.parent, node.token_ids, node.pins, node.num_children) for node in reply.nodes] == [
        (-1, [1, 2, 3, 4], 1, 2),
        (0, [7, 8], 1, 0),
        (0, [5, 6], 0, 0),
    ]
    assert [node.uses_ago for node in reply.nodes] == [0, 0, 2]
    cache.unpin(pinned)
    cache.audit()


def test_of_many_nodes_the_last_used_are_shown_with_all_above_them() -> None:
    cache = tree(*([7, 7, number, number, *range(2 * number)] for number in range(1, 100)))
    old = cache.pin(cache.match("", [7, 7, 1, 1], 2))
    for most in (1, 2, 3, 10, 50):
        nodes = view(cache, 1, most).nodes
        assert len(nodes) == most
        assert all(node.parent < place for place, node in enumerate(nodes))
        ages = [node.uses_ago for node in nodes]
        assert ages == sorted(ages)
        assert nodes[: len(nodes)] == view(cache, 1, 50).nodes[:most]
    assert [node.token_ids[:2] for node in view(cache, 1, 2).nodes] == [[7, 7], [1, 1]]
    cache.unpin(old)
    cache.audit([])


def test_namespaces_are_numbers_and_long_nodes_are_cut() -> None:
    cache = tree(list(range(1000)), namespaces=("a secret", "another"))
    nodes = view(cache, 1, 10).nodes
    assert [node.namespace for node in nodes] == [0, 1]
    assert [len(node.token_ids) for node in nodes] == [MAX_NODE_TOKENS] * 2
    assert [node.num_tokens for node in nodes] == [1000, 1000]


def test_there_is_a_most() -> None:
    cache = tree(*([number, number] for number in range(MAX_NODES + 5)))
    assert len(view(cache, 1, 10 * MAX_NODES).nodes) == MAX_NODES
    assert view(RadixCache(PAGE), 1, 5).nodes == []
