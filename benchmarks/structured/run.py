"""What a grammar costs: to compile it, and in each step of the model, with some and with many constrained rows.

    python -m benchmarks.structured.run
    python -m benchmarks.structured.run --rows 1 8 --steps 20 --out structured.json

In one process, without a server. Steps with every row constrained take turns with free ones of as many rows, so that what else
the machine does meets both; the figure is the median of the differences.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

from benchmarks.harness import machine
from millstream.checkpoint.locate import configured_source
from millstream.config import ServerConfig
from millstream.execution.interface import Executor, ForwardBatch, ForwardRow
from millstream.execution.registry import load_executor
from millstream.grammar.matcher import GrammarCompiler, Matcher
from millstream.grammar.source import convert
from millstream.grammar.vocabulary import vocabulary_of
from millstream.messages.grammar import GrammarSpec
from millstream.messages.sampling import SamplingParams
from millstream.text.tokenizer import load_configured_tokenizer

ITEM = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "n": {"type": "integer"}, "k": {"enum": ["red", "green", "blue"]}},
    "required": ["name", "n", "k"],
    "additionalProperties": False,
}
ENDLESS = {"type": "array", "items": ITEM, "minItems": 200}  # longer than any run
KINDS: list[Any] = [
    ITEM,
    ENDLESS,
    {"anyOf": [{"type": "null"}, ITEM, {"type": "string", "pattern": r"^\d{3}-[a-z]+$"}]},
    {"enum": [f"value {number}" for number in range(500)]},
    {"type": "object", "properties": {f"f{i}": {"type": ["string", "null"]} for i in range(50)}, "required": ["f0"]},
    {"type": "object", "additionalProperties": {"type": "string", "format": "date-time"}},
    {"type": "array", "prefixItems": [ITEM, {"type": "number", "minimum": 0.5, "maximum": 7}], "items": False, "minItems": 2},
]
PROMPT = "Write a JSON list of things: "
PAGES_A_ROW = 40


def compiled(compiler: GrammarCompiler, schema: Any) -> tuple[Matcher, float]:
    """A matcher, and the seconds until there was one."""
    grammar = convert(GrammarSpec("json_schema", json.dumps(schema)))
    started = time.perf_counter()
    while (matcher := compiler.matcher(grammar)) is None:
        time.sleep(0)
    return matcher, time.perf_counter() - started


def step(executor: Executor, rows: list[ForwardRow], matchers: list[Matcher]) -> float:
    """Run one step as the scheduler does; returns its seconds."""
    started = time.perf_counter()
    for row, matcher in zip(rows, matchers, strict=False):
        row.allowed = matcher.mask()
    output = executor.forward(ForwardBatch(rows))
    for index, (row, ids) in enumerate(zip(rows, output.token_ids, strict=True)):
        if matchers:
            matchers[index].take(ids)
        row.token_ids = [*row.token_ids, *ids]
        row.start, row.end = row.end, len(row.token_ids)
    return time.perf_counter() - started


def compare(executor: Executor, prompt: list[int], compiler: GrammarCompiler, num_rows: int, steps: int) -> dict[str, Any]:
    """Time steps of `num_rows` rows, free and constrained in turns."""

    def rows(first_page: int) -> list[ForwardRow]:
        return [
            ForwardRow(
                rid=f"{first_page}-{number}",
                token_ids=list(prompt),
                num_prompt_tokens=len(prompt),
                start=0,
                end=len(prompt),
                pages=[first_page + number * PAGES_A_ROW + page for page in range(PAGES_A_ROW)],
                sampling=SamplingParams(),
                seed=number,
                sample=True,
            )
            for number in range(num_rows)
        ]

    free, constrained = rows(0), rows(num_rows * PAGES_A_ROW)
    matchers = [compiled(compiler, ENDLESS)[0] for _ in range(num_rows)]
    step(executor, free, []), step(executor, constrained, matchers)  # the prompts
    pairs = [(step(executor, free, []), step(executor, constrained, matchers)) for _ in range(steps)]
    plain = statistics.median(pair[0] for pair in pairs)
    more = statistics.median(pair[1] - pair[0] for pair in pairs)
    return {"rows": num_rows, "free_ms": plain * 1e3, "more_ms": more * 1e3, "overhead": more / plain}


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--executor", default=ServerConfig.executor)
    parser.add_argument("--out", type=Path, default=Path("structured.json"))
    arguments = parser.parse_args()
    config = ServerConfig(executor=arguments.executor)
    source = configured_source(config)
    tokenizer = load_configured_tokenizer(config, source)
    executor = load_executor(config, source)
    compiler = GrammarCompiler(vocabulary_of(tokenizer, executor.capabilities.eos_token_ids | tokenizer.eos_token_ids))
    compile_ms = sorted(compiled(compiler, schema)[1] * 1e3 for schema in KINDS)
    print(f"compile: median {statistics.median(compile_ms):.1f} ms, most {compile_ms[-1]:.1f}")
    prompt = tokenizer.encode(PROMPT, add_special_tokens=False)
    runs = []
    for num_rows in arguments.rows:
        run = compare(executor, prompt, compiler, num_rows, arguments.steps)
        runs.append(run)
        print(f"{num_rows} rows: {run['free_ms']:.2f} ms a step, constrained {run['more_ms']:+.2f} ms, {run['overhead']:+.1%}")
    executor.close()
    arguments.out.write_text(json.dumps({"machine": machine(), "compile_ms": compile_ms, "runs": runs}, indent=2))


if __name__ == "__main__":
    main()
