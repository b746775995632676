"""PageAllocator: who owns each KV page. Integers only; the tensors behind the numbers live with the executor.

Called by `KVPool`. Must never hand out a page that somebody owns, and never guess: a page given back by anybody but its owner
is our bug and raises.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Final

from millstream.errors import InvariantError


class Owner(Enum):
    """Owners that are not requests. A request owns under its rid, a string, so no rid can be mistaken for one of these."""

    FREE = "free"
    TREE = "tree"


class PageAllocator:
    """Pages `0..num_pages - 1`; each has exactly one owner at any time: nobody (free), a request, or the prefix tree."""

    def __init__(self, num_pages: int) -> None:
        self.num_pages: Final = num_pages
        self._owner: list[str | Owner] = [Owner.FREE] * num_pages
        self._free = list(range(num_pages - 1, -1, -1))  # a stack; low numbers go out first
        self._held: dict[str, int] = {}  # pages a request owns; no entry for none
        self._in_tree = 0

    @property
    def num_free(self) -> int:
        """Pages nobody owns."""
        return len(self._free)

    @property
    def num_in_tree(self) -> int:
        """Pages the prefix tree owns."""
        return self._in_tree

    @property
    def num_owned(self) -> int:
        """Pages that requests own."""
        return self.num_pages - len(self._free) - self._in_tree

    def num_held(self, rid: str) -> int:
        """Pages the request `rid` owns."""
        return self._held.get(rid, 0)

    def owner(self, page: int) -> str | Owner:
        """Who owns `page`."""
        return self._owner[page]

    def alloc(self, rid: str, count: int) -> list[int]:
        """Take `count` free pages for `rid`.

        Raises:
            InvariantError: fewer are free; the caller had to evict first.
        """
        if count > len(self._free):
            raise InvariantError(f"{count} pages asked for {rid}, {len(self._free)} are free")
        if count <= 0:
            return []
        pages = self._free[-count:][::-1]
        del self._free[-count:]
        for page in pages:
            self._owner[page] = rid
        self._count(rid, count)
        return pages

    def free(self, rid: str, pages: Iterable[int]) -> None:
        """Give back pages that `rid` owns.

        Raises:
            InvariantError: one of them is not `rid`'s.
        """
        for page in pages:
            self._move(page, rid, Owner.FREE)
            self._free.append(page)
            self._count(rid, -1)

    def give_to_tree(self, rid: str, pages: Iterable[int]) -> None:
        """Hand pages of `rid` over to the prefix tree.

        Raises:
            InvariantError: one of them is not `rid`'s.
        """
        for page in pages:
            self._move(page, rid, Owner.TREE)
            self._count(rid, -1)
            self._in_tree += 1

    def free_from_tree(self, pages: Iterable[int]) -> None:
        """Give back pages that the tree has evicted.

        Raises:
            InvariantError: one of them is not the tree's.
        """
        for page in pages:
            self._move(page, Owner.TREE, Owner.FREE)
            self._free.append(page)
            self._in_tree -= 1

    def audit(self) -> None:
        """Check that free + owned == all and that no page is owned twice. O(num_pages); changes nothing.

        Raises:
            InvariantError: a page was lost or shared.
        """
        if len(set(self._free)) != len(self._free):
            raise InvariantError("a page is in the free list twice")
        if any(self._owner[page] is not Owner.FREE for page in self._free):
            raise InvariantError("a page in the free list has an owner")
        if self._owner.count(Owner.FREE) != len(self._free) or self._owner.count(Owner.TREE) != self._in_tree:
            raise InvariantError("the owners of pages and their counts differ")
        self.audit_counts()

    def audit_counts(self) -> None:
        """The part of `audit` that costs nothing: the counts add up.

        Raises:
            InvariantError: they do not.
        """
        owned = sum(self._held.values()) + self._in_tree
        if len(self._free) + owned != self.num_pages:
            raise InvariantError(f"{len(self._free)} free + {owned} owned pages are not {self.num_pages}")

    def _move(self, page: int, source: str | Owner, target: Owner) -> None:
        if self._owner[page] != source:
            raise InvariantError(f"page {page} belongs to {self._owner[page]}, not to {source}")
        self._owner[page] = target

    def _count(self, rid: str, change: int) -> None:
        held = self._held.get(rid, 0) + change
        if held:
            self._held[rid] = held
        else:
            self._held.pop(rid, None)
