"""The prefix tree as it is at one moment, as it travels from the scheduler to who asked."""

from __future__ import annotations

from msgspec import Struct

MAX_NODES = 1000  # of one answer
MAX_NODE_TOKENS = 64  # ids of a node that are told: its first ones


class RadixReq(Struct, frozen=True, tag="radix_req", gc=False):
    """Ask for the prefix tree. entry -> scheduler; answered by a `RadixReply`."""

    id: int
    entry: int  # the worker that asks
    max_nodes: int  # the most recently used ones; more than `MAX_NODES` are never told


class RadixNode(Struct, frozen=True, gc=False):
    """One node: tokens in whole pages, and who needs them."""

    parent: int  # the place of its parent in the list; -1: it begins a prompt
    namespace: int  # 0, 1, ...: nodes of different ones share nothing. What clients call them is nobody else's matter
    token_ids: list[int]  # the first `MAX_NODE_TOKENS`
    num_tokens: int
    num_pages: int
    pins: int  # requests that hold it or something below it
    uses_ago: int  # what the tree counted since it was last used: matches, inserts, releases
    num_children: int  # those that are left out, too


class RadixReply(Struct, frozen=True, tag="radix", gc=False):
    """The tree. scheduler -> entry. `nodes` come after their parents, the most recently used first."""

    id: int
    nodes: list[RadixNode]
    num_pages: int  # that the tree owns, in nodes that are left out, too
    num_evictable_pages: int
    num_pins: int
