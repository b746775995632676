"""Millstream: an LLM serving runtime that can prove what it did."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from millstream.engine.engine import Engine

__all__ = ["Engine", "__version__"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    # loaded when it is asked for: it brings what loads models, and the command line needs none of that
    if name == "Engine":
        from millstream.engine.engine import Engine

        return Engine
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
