"""Enforced calls on the conversations of the Berkeley Function-Calling Leaderboard: is each complete and of its schema?

    millstream serve --chat-template tests/clients/programs/tools.jinja
    python -m benchmarks.schemas.functions --url http://127.0.0.1:30000

`make packages` fetches them. A server of the embedded model, which was never taught to call, gets each conversation with its
functions as tools and `tool_choice` required, temperature 1. This says nothing of whether a call is the right one: that is the
model's part. What is cut by `--max-tokens` counts apart.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import jsonschema

SUITE = Path(sys.prefix) / "suites" / "bfcl"
TYPES = {  # of Python, Java and JavaScript, as the suite has them
    "dict": "object", "HashMap": "object", "float": "number", "double": "number", "tuple": "array", "Array": "array",
    "ArrayList": "array", "String": "string", "char": "string", "Boolean": "boolean", "long": "integer", "any": "", "": "",
}  # fmt: skip
KEPT = ("properties", "required", "items", "enum", "minItems", "maxItems", "minimum", "maximum", "description")


def schema_of(given: Any) -> Any:
    """A type of the suite as a JSON schema."""
    if not isinstance(given, dict):
        return {}
    made = {word: given[word] for word in KEPT if word in given}
    if name := TYPES.get(given.get("type", ""), given.get("type", "")):
        made["type"] = name
    if isinstance(made.get("properties"), dict):
        made["properties"] = {key: schema_of(child) for key, child in made["properties"].items()}
    if "items" in made:
        made["items"] = schema_of(made["items"])
    return made


def conversations(per_file: int, suite: Path = SUITE) -> Iterator[dict[str, Any]]:
    """The first ones of each file, as fields of a request; dots in names are no part of OpenAI's."""
    for file in sorted(suite.glob("*.json")):
        for line in file.read_text().splitlines()[:per_file]:
            given = json.loads(line)
            functions = {each["name"].replace(".", "_")[-64:]: each for each in given["function"]}
            tools = [
                {"name": name, "description": each["description"], "parameters": schema_of(each["parameters"])}
                for name, each in functions.items()
            ]
            yield {
                "messages": given["question"][0],
                "tools": [{"type": "function", "function": tool} for tool in tools],
                "tool_choice": "required",
            }


def verdict(body: dict[str, Any], response: httpx.Response) -> str:
    """What came of a conversation: "valid", "length", "refused: ..." or "wrong: ..."."""
    if response.status_code == 400:
        return f"refused: {response.json()['error']['message']}"
    if response.status_code != 200:
        return f"wrong: {response.status_code} {response.text}"
    (choice,) = response.json()["choices"]
    if choice["finish_reason"] == "length":
        return "length"
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in body["tools"]}
    calls = choice["message"].get("tool_calls") or []
    if choice["finish_reason"] != "tool_calls" or not calls or choice["message"].get("content"):
        return f"wrong: {choice}"
    try:
        for call in calls:
            jsonschema.validate(json.loads(call["function"]["arguments"]), schemas[call["function"]["name"]])
    except (KeyError, ValueError, jsonschema.ValidationError) as error:
        return f"wrong: {error!r}: {calls}"
    return "valid"


def measure(url: str, bodies: list[dict[str, Any]], *, max_tokens: int, seconds: float = 1e9, clients: int = 16) -> list[str]:
    """The verdict of each that was begun in time."""
    until = time.monotonic() + seconds

    def ask(numbered: tuple[int, dict[str, Any]]) -> str | None:
        if time.monotonic() > until:
            return None
        seed, body = numbered
        more = {"temperature": 1, "seed": seed, "max_tokens": max_tokens, "parallel_tool_calls": False}
        return verdict(body, httpx.post(f"{url}/v1/chat/completions", json={**body, **more}, timeout=600))

    with ThreadPoolExecutor(clients) as pool:
        return [each for each in pool.map(ask, enumerate(bodies)) if each is not None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True, help="a server with a chat template that has tools, and their parser")
    parser.add_argument("--per-file", type=int, default=50)
    parser.add_argument("--max-tokens", type=int, default=512)
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no conversation after so long")
    parser.add_argument("--out", type=Path, help="write the verdicts here as JSON")
    options = parser.parse_args()
    if not SUITE.is_dir():
        raise SystemExit(f"{SUITE} is not there: `make packages` fetches it")
    bodies = list(conversations(options.per_file))
    verdicts = measure(options.url, bodies, max_tokens=options.max_tokens, seconds=options.seconds)
    for kind in ("valid", "length", "refused", "wrong"):
        print(f"{kind}: {sum(each.startswith(kind) for each in verdicts)} of {len(verdicts)}")
    for each in verdicts:
        if each.startswith(("refused", "wrong")):
            print(each[:300])
    if options.out:
        options.out.write_text(json.dumps(verdicts, indent=1) + "\n")


if __name__ == "__main__":
    main()
