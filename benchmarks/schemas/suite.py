"""The part of the official JSON Schema Test Suite that grammars follow.

    python -m benchmarks.schemas.suite
    python -m benchmarks.schemas.suite --out schemas.json

`make packages` fetches the suite. Each schema of it is followed, or refused by what we do not support; each instance of those
that are followed is a text that the grammar allows, or not. A grammar has the members of an object in the order of its schema
and limits numbers, so some that are valid are not allowed; none that is not valid may be.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.schemas.grammar import SchemaGrammar
from millstream.grammar.errors import GrammarError

SUITE = Path(sys.prefix) / "suites" / "json-schema" / "jsonschema-4.26.0" / "json" / "tests"
DRAFTS = ("draft2020-12", "draft7")


@dataclass
class Outcome:
    """Of one draft: schemas, and the instances of those that are followed. `wrong` are the invalid ones that are allowed."""

    draft: str
    num_schemas: int = 0
    num_followed: int = 0
    num_valid: int = 0
    num_valid_allowed: int = 0
    num_invalid: int = 0
    wrong: list[str] = field(default_factory=list)
    missed: dict[str, int] = field(default_factory=dict)  # valid ones that are not allowed, by the suite's files


def measure(draft: str, suite: Path = SUITE) -> Outcome:
    """Run the required part of a draft."""
    outcome = Outcome(draft)
    for file in sorted((suite / draft).glob("*.json")):
        for group in json.loads(file.read_text()):
            outcome.num_schemas += 1
            try:
                grammar = SchemaGrammar(group["schema"])
            except (GrammarError, ValueError):
                continue
            outcome.num_followed += 1
            for test in group["tests"]:
                _count(outcome, f"{file.stem}: {group['description']}: {test['description']}", file.stem, test, grammar)
    return outcome


def _count(outcome: Outcome, name: str, keyword: str, test: dict[str, Any], grammar: SchemaGrammar) -> None:
    is_allowed = grammar.allows_value(test["data"])
    if not test["valid"]:
        outcome.num_invalid += 1
        if is_allowed:
            outcome.wrong.append(name)
        return
    outcome.num_valid += 1
    outcome.num_valid_allowed += is_allowed
    if not is_allowed:
        outcome.missed[keyword] = outcome.missed.get(keyword, 0) + 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", type=Path, default=SUITE, help="the folder with a folder of each draft")
    parser.add_argument("--out", type=Path, help="write JSON here")
    options = parser.parse_args()
    if not options.suite.is_dir():
        raise SystemExit(f"{options.suite} is not there: `make packages` fetches it")
    outcomes = [measure(draft, options.suite) for draft in DRAFTS]
    print("| draft | schemas | followed | valid, allowed | invalid, refused | valid, not allowed, of |\n| --- | --- | --- | --- | --- | --- |")
    for each in outcomes:
        refused = each.num_invalid - len(each.wrong)
        missed = ", ".join(f"{name} {count}" for name, count in sorted(each.missed.items()))
        print(
            f"| {each.draft} | {each.num_schemas} | {each.num_followed} ({each.num_followed / each.num_schemas:.0%}) "
            f"| {each.num_valid_allowed} of {each.num_valid} | {refused} of {each.num_invalid} | {missed} |"
        )
        for name in each.wrong:
            print(f"invalid and allowed: {each.draft} {name}")
    if options.out:
        options.out.write_text(json.dumps([asdict(each) for each in outcomes], indent=1) + "\n")


if __name__ == "__main__":
    main()
