"""GET /debug/radix: the prefix tree as the scheduler has it now, its tokens as text. Other people's prompts: for admins."""

from __future__ import annotations

from typing import Any

from millstream.entry.http.exchange import Exchange
from millstream.entry.query import read_query
from millstream.entry.service import Service
from millstream.errors import RequestError
from millstream.messages import RadixNode
from millstream.messages.radix import MAX_NODES
from millstream.text.tokenizer import Tokenizer

DEFAULT_NODES = 200


async def debug_radix(exchange: Exchange, service: Service) -> None:
    """The prefix tree: the nodes that were used last, `?max_nodes=` of them, with tokens, pages, pins and last use."""
    max_nodes = _read_max_nodes(exchange)
    manager = service.manager
    reply = await manager.questions.radix(max_nodes)
    await exchange.send_json(
        {
            "page_size": manager.engine.page_size,
            "pages_cached": reply.num_pages,
            "pages_evictable": reply.num_evictable_pages,
            "pins": reply.num_pins,
            "nodes": [_shown(place, node, manager.tokenizer) for place, node in enumerate(reply.nodes)],
        }
    )


def _read_max_nodes(exchange: Exchange) -> int:
    text = read_query(exchange, "max_nodes").get("max_nodes", str(DEFAULT_NODES))
    if not (text.isascii() and text.isdecimal() and len(text) < 9 and 1 <= int(text) <= MAX_NODES):
        raise RequestError(f"max_nodes is {text[:100]}; it must be from 1 to {MAX_NODES}.", param="max_nodes")
    return int(text)


def _shown(place: int, node: RadixNode, tokenizer: Tokenizer) -> dict[str, Any]:
    """One node. `text` is of its first tokens; a character that begins in the node before shows as U+FFFD."""
    return {
        "id": place,
        "parent": None if node.parent < 0 else node.parent,
        "namespace": node.namespace,
        "text": tokenizer.decode(node.token_ids, skip_special_tokens=False),
        "tokens": node.num_tokens,
        "pages": node.num_pages,
        "pins": node.pins,
        "uses_ago": node.uses_ago,
        "children": node.num_children,
    }
