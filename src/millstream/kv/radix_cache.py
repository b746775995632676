"""RadixCache: a radix tree over token ids in whole pages, from a prompt's prefix to the pages that hold its KV.

Called by `KVPool`, which moves page ownership as this tree says. Holds integers only; never allocates or frees a page itself.

The idea is RadixAttention's (Zheng et al., "SGLang: Efficient Execution of Structured Language Model Programs", section 3):
keep finished prompts in a radix tree, evict the least recently used leaf first. A node covers one or more whole pages; children
are found by namespace and first page, so two namespaces share nothing though they share one root. A pin on a node pins its
ancestors, so whatever is not pinned can be evicted leaf by leaf, and `evictable_pages` is a plain counter.
"""

from __future__ import annotations

import heapq
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final, NamedTuple

from millstream.errors import InvariantError

MAX_SIBLINGS = 128  # children of one node that are looked at to explain a miss
MAX_EVICTED = 4096  # pages that are remembered after their eviction

Key = tuple[str | int, ...]  # namespace, then the token ids of one page


class Node:
    """`pages` in a row and the `tokens` they hold (`len(pages) * page_size`), below a parent."""

    __slots__ = ("children", "key", "pages", "parent", "pins", "queued", "serial", "tokens", "used")

    def __init__(self, parent: Node | None, key: Key, tokens: list[int], pages: list[int], serial: int, used: int) -> None:
        self.parent = parent
        self.key = key
        self.tokens = tokens
        self.pages = pages
        self.children: dict[Key, Node] = {}
        self.pins = 0  # holders of this node or of any node below it
        self.used = used  # the tree's clock when it was last matched, inserted or let go
        self.serial = serial
        self.queued = False  # has an entry in the eviction heap


class Match(NamedTuple):
    """The longest known prefix of a token list. Valid until the tree changes."""

    node: Node | None  # the deepest node that takes part; None where nothing matched
    pages: list[int]  # page numbers, from the start of the token list
    num_in_node: int  # how many of them lie in `node`
    num_unpinned: int  # how many of them count as evictable now: pinning the match takes them away


class RadixCache:
    """The tree. Invariants: no two children of a node share their first page; a pinned node's ancestors are pinned;
    no node was used later than its parent; `evictable_pages` is the number of pages in nodes without pins, and all of those
    can be evicted.
    """

    def __init__(self, page_size: int) -> None:
        self.page_size: Final = page_size
        self._evicted: OrderedDict[int, None] = OrderedDict()  # hashes of pages that made room, for `was_evicted`
        self._root = Node(None, (), [], [], 0, 0)
        self._serial = 0
        self._clock = 0
        self._heap: list[
            tuple[int, int, Node]
        ] = []  # (used when queued, serial, node): candidates for eviction, checked lazily
        self.version = 0  # counts the changes of what is known
        self.num_pages = 0
        self.evictable_pages = 0
        self.num_pins = 0  # what `pin` gave out and `unpin` has not taken back

    @property
    def root(self) -> Node:
        """The node above all others, with no tokens; for who looks at the tree."""
        return self._root

    @property
    def clock(self) -> int:
        """What the tree counts: a use is the later, the higher its number."""
        return self._clock

    def match(self, namespace: str, token_ids: Sequence[int], max_pages: int) -> Match:
        """Find the longest prefix of `token_ids` in whole pages, `max_pages` at most. Changes nothing, not even recency."""
        node = self._root
        pages: list[int] = []
        in_node = unpinned = 0
        while len(pages) < max_pages:
            child = node.children.get(self._key(namespace, token_ids, len(pages)))
            if child is None:
                break
            in_node = self._common_pages(child, token_ids, len(pages), max_pages)
            pages += child.pages[:in_node]
            unpinned += 0 if child.pins else in_node
            node = child
            if in_node < len(child.pages):
                break
        return Match(node if pages else None, pages, in_node, unpinned)

    def pin(self, match: Match) -> Node | None:
        """Keep the pages of a match until `unpin`. Mutates: splits a node that matched in part, refreshes recency, pins.

        Returns what `unpin` takes back; None for an empty match.
        """
        if match.node is None:
            return None
        node = match.node if match.num_in_node == len(match.node.pages) else self._split(match.node, match.num_in_node)
        self._clock += 1
        self.num_pins += 1
        walk: Node | None = node
        while walk is not None and walk is not self._root:
            if walk.pins == 0:
                self.evictable_pages -= len(walk.pages)
            walk.pins += 1
            walk.used = self._clock
            walk = walk.parent
        return node

    def unpin(self, node: Node | None) -> None:
        """Let go of what `pin` returned. Mutates pins and recency; evicts nothing.

        Raises:
            InvariantError: the node is not pinned.
        """
        if node is None:
            return
        self._clock += 1
        self.num_pins -= 1
        walk: Node | None = node
        while walk is not None and walk is not self._root:
            if walk.pins == 0:
                raise InvariantError("a prefix was unpinned more often than pinned")
            walk.pins -= 1
            walk.used = self._clock
            if walk.pins == 0:
                self.evictable_pages += len(walk.pages)
                self._queue(walk)
            walk = walk.parent

    def insert(self, namespace: str, token_ids: Sequence[int], pages: Sequence[int]) -> Match:
        """Make the whole pages of `token_ids` known, held by `pages`. Mutates: may split a node, adds one, refreshes recency.

        Of `pages` the tree takes those behind the prefix it already knows; the returned match lists the tree's own pages for
        every position: where it differs from `pages`, the caller's page is a duplicate that stays the caller's.
        """
        known = self.match(namespace, token_ids, len(pages))
        num_known = len(known.pages)
        if num_known == len(pages):
            return known
        parent = known.node or self._root
        if known.node is not None and known.num_in_node < len(known.node.pages):
            parent = self._split(known.node, known.num_in_node)
        self._clock += 1
        self._serial += 1
        first = num_known * self.page_size
        new_pages = list(pages[num_known:])
        key = self._key(namespace, token_ids, num_known)
        tokens = list(token_ids[first : first + len(new_pages) * self.page_size])
        node = Node(parent, key, tokens, new_pages, self._serial, self._clock)
        parent.children[key] = node
        walk: Node | None = parent
        while walk is not None:  # a parent is never older than its children
            walk.used = self._clock
            walk = walk.parent
        self.version += 1
        self.num_pages += len(new_pages)
        self.evictable_pages += len(new_pages)
        self._queue(node)
        return Match(node, known.pages + new_pages, len(new_pages), known.num_unpinned + len(new_pages))

    def evict(self, count: int) -> list[int]:
        """Forget up to `count` pages that nobody pinned, least recently used leaf first, a leaf from its end.

        Mutates. Returns the pages, no longer the tree's; fewer than `count` only where fewer are evictable.
        """
        evicted: list[int] = []
        while len(evicted) < count and self._heap:
            used, _, node = heapq.heappop(self._heap)
            node.queued = False
            if node.pins or node.children:
                continue  # it is queued again when the pin or the last child goes
            if used != node.used:
                self._queue(node)
                continue
            take = min(len(node.pages), count - len(evicted))
            evicted += node.pages[-take:]
            self._remember(node, len(node.pages) - take)
            del node.pages[-take:]
            del node.tokens[-take * self.page_size :]
            if node.pages:
                self._queue(node)
            else:
                self._detach(node)
        self.version += bool(evicted)
        self.num_pages -= len(evicted)
        self.evictable_pages -= len(evicted)
        return evicted

    def beyond(self, match: Match, namespace: str, num_tokens: int) -> list[Sequence[int]]:
        """What is known where `match` ends and goes on otherwise: `num_tokens` tokens or more of each prefix, the newest first;
        of many, some. Changes nothing.
        """
        node = match.node or self._root
        if match.num_in_node < len(node.pages):
            start = match.num_in_node * self.page_size
            return [node.tokens[start : start + num_tokens]]
        children = islice(reversed(node.children.values()), MAX_SIBLINGS)
        return [child.tokens for child in children if child.key[0] == namespace]

    def was_evicted(self, namespace: str, token_ids: Sequence[int], page: int) -> bool:
        """Whether that page of `token_ids` was known and made room lately."""
        return hash(self._key(namespace, token_ids, page)) in self._evicted

    def has_elsewhere(self, namespace: str, token_ids: Sequence[int]) -> bool:
        """Whether the first page is known in another namespace; of many, some are looked at."""
        tokens = tuple(token_ids[: self.page_size])
        return any(key[1:] == tokens and key[0] != namespace for key in islice(reversed(self._root.children), MAX_SIBLINGS))

    def forget(self, namespace: str) -> list[int]:
        """Forget a whole namespace, in which nothing is pinned. Mutates. Returns its pages, no longer the tree's.

        Raises:
            InvariantError: a part of it is pinned.
        """
        forgotten: list[int] = []
        for child in [child for key, child in self._root.children.items() if key[0] == namespace]:
            for node in _subtree(child):
                if node.pins:
                    raise InvariantError("a namespace was forgotten while somebody used it")
                forgotten += node.pages
                node.pages = []
            del self._root.children[child.key]
        if forgotten:
            self._heap = [entry for entry in self._heap if entry[2].pages]
            heapq.heapify(self._heap)
        self.version += 1
        self.num_pages -= len(forgotten)
        self.evictable_pages -= len(forgotten)
        return forgotten

    def pages(self) -> list[int]:
        """Every page the tree owns, in no order. O(pages); for audits."""
        return [page for node in self._nodes() for page in node.pages]

    def path(self, node: Node | None) -> list[int]:
        """The pages that a pin on `node` holds, from the start of its token list."""
        above: list[Node] = []
        while node is not None and node is not self._root:
            above.append(node)
            node = node.parent
        return [page for node in reversed(above) for page in node.pages]

    def num_unpinned_without(self, pinned: Iterable[Node]) -> int:
        """How many pages more could be evicted if these pins were taken back. Changes nothing."""
        return sum(len(node.pages) for node, count in self._count_pins(pinned).items() if count == node.pins)

    def audit(self, pinned: Iterable[Node] = ()) -> None:
        """Check the class's invariants, and that `pinned`, one for each pin, are all that is pinned. O(pages); changes nothing.

        Raises:
            InvariantError: one does not hold.
        """
        pins = self._count_pins(pinned)
        num_pages = evictable = 0
        for node in self._nodes():
            if node.pins != pins[node]:
                raise InvariantError(f"a node has {node.pins} pins, of which {pins[node]} have a holder")
            parent = node.parent
            if not node.pages or len(node.tokens) != len(node.pages) * self.page_size:
                raise InvariantError("a node's tokens and pages differ")
            if (
                parent is None
                or parent.children.get(node.key) is not node
                or node.key[1:] != tuple(node.tokens[: self.page_size])
            ):
                raise InvariantError("a node is not where its first page says")
            if parent is not self._root and (node.pins > parent.pins or node.used > parent.used):
                raise InvariantError("a node is pinned or used more than its parent")
            if not node.pins and not node.children and not node.queued:
                raise InvariantError("a leaf without pins is not up for eviction")
            num_pages += len(node.pages)
            evictable += 0 if node.pins else len(node.pages)
        if (num_pages, evictable) != (self.num_pages, self.evictable_pages):
            raise InvariantError("the tree's counts differ from its pages")

    def _count_pins(self, pinned: Iterable[Node]) -> Counter[Node]:
        pins = Counter[Node]()
        for node in pinned:
            walk: Node | None = node
            while walk is not None and walk is not self._root:
                pins[walk] += 1
                walk = walk.parent
        return pins

    def _nodes(self) -> list[Node]:
        return _subtree(self._root)[1:]

    def _key(self, namespace: str, token_ids: Sequence[int], page: int) -> Key:
        first = page * self.page_size
        return (namespace, *token_ids[first : first + self.page_size])

    def _common_pages(self, node: Node, token_ids: Sequence[int], page: int, max_pages: int) -> int:
        """How many of `node`'s pages equal those of `token_ids` from `page` on; the first is known to."""
        size = self.page_size
        most = min(len(node.pages), max_pages - page)
        first = page * size
        if list(token_ids[first : first + most * size]) == node.tokens[: most * size]:
            return most
        common = 1
        while (
            list(token_ids[first + common * size : first + (common + 1) * size])
            == node.tokens[common * size : (common + 1) * size]
        ):
            common += 1
        return common

    def _split(self, node: Node, count: int) -> Node:
        """Cut `node` after `count` pages; returns the new upper part. `node` stays the lower part: its pinners hold it."""
        parent = node.parent
        if parent is None:
            raise InvariantError("the root has nothing to split")
        cut = count * self.page_size
        self._serial += 1
        upper = Node(parent, node.key, node.tokens[:cut], node.pages[:count], self._serial, node.used)
        upper.pins = node.pins
        parent.children[node.key] = upper
        node.parent = upper
        node.key = (node.key[0], *node.tokens[cut : cut + self.page_size])
        node.tokens = node.tokens[cut:]
        node.pages = node.pages[count:]
        upper.children[node.key] = node
        return upper

    def _remember(self, node: Node, start: int) -> None:
        """Note the pages of a node from `start` on, which are evicted."""
        namespace = str(node.key[0])
        for page in range(max(start, len(node.pages) - MAX_EVICTED), len(node.pages)):
            self._evicted[hash(self._key(namespace, node.tokens, page))] = None
        while len(self._evicted) > MAX_EVICTED:
            self._evicted.popitem(last=False)

    def _queue(self, node: Node) -> None:
        if not node.queued and not node.pins and not node.children:
            node.queued = True
            heapq.heappush(self._heap, (node.used, node.serial, node))

    def _detach(self, node: Node) -> None:
        parent = node.parent
        if parent is None:
            raise InvariantError("the root cannot be evicted")
        del parent.children[node.key]
        if parent is not self._root:
            self._queue(parent)


def _subtree(top: Node) -> list[Node]:
    nodes = [top]
    for node in nodes:
        nodes.extend(node.children.values())
    return nodes
