"""The prefix tree as somebody may look at it: a bounded picture, the most recently used nodes first. Changes nothing.

Called by `KVPool` for `RadixReq`. Takes time in the number of nodes that are told and of their children, never in that of all.
"""

from __future__ import annotations

import heapq

from millstream.kv.radix_cache import Node, RadixCache
from millstream.messages import RadixNode, RadixReply
from millstream.messages.radix import MAX_NODE_TOKENS, MAX_NODES


def view(cache: RadixCache, number: int, max_nodes: int) -> RadixReply:
    """The answer to question `number`: at most `max_nodes` nodes, each behind its parent."""
    nodes = _recent(cache.root, min(max_nodes, MAX_NODES))
    places = {node: place for place, (node, _) in enumerate(nodes)}
    namespaces: dict[str | int, int] = {}
    shown = [
        RadixNode(
            parent=-1 if parent is cache.root else places[parent],
            namespace=namespaces.setdefault(node.key[0], len(namespaces)),
            token_ids=node.tokens[:MAX_NODE_TOKENS],
            num_tokens=len(node.tokens),
            num_pages=len(node.pages),
            pins=node.pins,
            uses_ago=cache.clock - node.used,
            num_children=len(node.children),
        )
        for node, parent in nodes
    ]
    return RadixReply(number, shown, cache.num_pages, cache.evictable_pages, cache.num_pins)


def _recent(root: Node, count: int) -> list[tuple[Node, Node]]:
    """The `count` nodes that were used last, with their parents, which are among them: none is used later than its parent."""
    found: list[tuple[Node, Node]] = []
    open_nodes = _children(root, count)
    heapq.heapify(open_nodes)
    while open_nodes and len(found) < count:
        _, _, node, parent = heapq.heappop(open_nodes)
        found.append((node, parent))
        for child in _children(node, count - len(found)):
            heapq.heappush(open_nodes, child)
    return found


def _children(parent: Node, count: int) -> list[tuple[int, int, Node, Node]]:
    """At most `count` children, with what they are ordered by: when they were last used, and their serial."""
    children = heapq.nlargest(count, parent.children.values(), key=lambda node: node.used)
    return [(-node.used, node.serial, node, parent) for node in children]
