"""How much of JSON Schema answers are held to, by the official JSON Schema Test Suite.

    python -m benchmarks.schemas
    python -m benchmarks.schemas --draft draft7 --reasons

`make packages` fetches the suite. Any vocabulary will do, so it is that of the scripted executor.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

from benchmarks.schemas.suite import Figures, ask
from millstream.grammar.vocabulary import vocabulary_of
from millstream.text.tokenizer import load_scripted_tokenizer

SUITE = Path(sys.prefix) / "suites" / "json-schema" / "jsonschema-4.26.0" / "json" / "tests"
DRAFTS = ("draft2020-12", "draft7")


def figures_of(draft: str) -> Figures:
    """Try one draft."""
    tokenizer = load_scripted_tokenizer()
    return ask(SUITE / draft, vocabulary_of(tokenizer, [0]))


def main() -> None:
    """Try the drafts and print what came of them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.schemas", description="Try the JSON Schema Test Suite.")
    parser.add_argument("--draft", nargs="+", default=list(DRAFTS))
    parser.add_argument("--reasons", action="store_true", help="why schemas are refused, and which instances differ")
    options = parser.parse_args()
    for draft in options.draft:
        made = figures_of(draft)
        print(
            f"{draft}: {made.followed} schemas followed, {len(made.refused)} refused; of the followed ones' instances "
            f"{made.allowed} valid ones allowed and {len(made.too_strict)} not, {made.forbidden} invalid ones not allowed and "
            f"{len(made.too_lax)} allowed"
        )
        if options.reasons:
            for reason, count in Counter(made.refused.values()).most_common():
                print(f"  refused {count}: {reason.splitlines()[0][:100]}")
            for name in made.too_strict:
                print(f"  valid, not allowed: {name}")
            for name in made.too_lax:
                print(f"  invalid, allowed: {name}")


if __name__ == "__main__":
    main()
