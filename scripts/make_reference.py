"""Write docs/reference from the code: options.md has every option, api.md every endpoint and field, metrics.md every metric.

python scripts/make_reference.py          write them
python scripts/make_reference.py --check  exit 1 where one is not current
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import sys
from pathlib import Path
from typing import Any

from millstream.config import GROUPS
from millstream.entry.describe.capabilities import describe_api
from millstream.entry.http.routes import ROUTES
from millstream.observe.aliases import ALIASES
from millstream.observe.families import families

FOLDER = Path(__file__).parent.parent / "docs" / "reference"
MADE = "Made by `python scripts/make_reference.py` from the code; a test fails where it is not current."
KEYS = {"open": "none", "user": "a user's", "admin": "an admin's"}


def options() -> list[str]:
    """A table of options for each group, with the sentences that stand under them in the code."""
    parts = []
    for group in GROUPS:
        sentences = _attribute_docs(group)
        rows = ["| option | default | meaning |", "| --- | --- | --- |"]
        for option in dataclasses.fields(group):
            default = "" if option.default in (None, ()) else f"`{option.default}`"
            rows.append(f"| `--{option.name.replace('_', '-')}` | {default} | {sentences[option.name]} |")
        heading, _, what = str(group.__doc__).partition(":")
        parts += [f"## {heading.rstrip('.')}", *([what.strip().capitalize()] if what else []), "\n".join(rows)]
    return parts


def _attribute_docs(owner: type) -> dict[str, str]:
    (body,) = ast.parse(inspect.getsource(owner)).body
    assert isinstance(body, ast.ClassDef)
    docs = {}
    for field, text in zip(body.body, body.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            assert isinstance(field.target, ast.Name)
            docs[field.target.id] = " ".join(str(text.value.value).split())
    return docs


def endpoints(api: dict[str, Any]) -> str:
    """The table of endpoints."""
    rows = ["| endpoint | key | body | |", "| --- | --- | --- | --- |"]
    for each in api["endpoints"]:
        path = each["path"] + "".join(f"?{name}=" for name in each["query"])
        body = "" if each["body"] is None else link(each["body"])
        rows.append(f"| `{each['method']} {path}` | {KEYS[each['access']]} | {body} | {each['summary']} |")
    return "\n".join(rows)


def link(body: str) -> str:
    """A link to the body's own heading."""
    return f"[{body}](#{body.lower()})"


def fields(body: dict[str, Any]) -> list[str]:
    """The three lists of one body, as paragraphs."""
    by_status: dict[str, dict[str, Any]] = {"honoured": {}, "without_effect": {}, "refused": {}}
    for name, told in body["fields"].items():
        by_status[told["status"]][name] = told
    rows = ["| field | takes | default |", "| --- | --- | --- |"]
    rows += [_honoured(name, told) for name, told in by_status["honoured"].items()]
    parts = ["\n".join(rows)]
    if without := by_status["without_effect"]:
        parts.append(
            "Accepted without effect: " + "; ".join(f"`{name}` ({told['why']})" for name, told in without.items()) + "."
        )
    if refused := by_status["refused"]:
        rows = ["| refused with 400 | because | passes all the same, for it asks for nothing |", "| --- | --- | --- |"]
        for name, told in refused.items():
            rows.append(f"| `{name}` | {told['why']} | {', '.join(_code(value) for value in told['neutral'])} |")
        parts.append("\n".join(rows))
    return parts


def _honoured(name: str, told: dict[str, Any]) -> str:
    schema = told["schema"]
    default = "required" if told["required"] else _code(schema["default"]) if schema.get("default") is not None else ""
    note = "; an admin's key" if told.get("access") == "admin" else ""
    return f"| `{name}` | {takes(schema)}{note} | {default} |"


def takes(schema: dict[str, Any]) -> str:
    """A JSON Schema in words."""
    if "$ref" in schema:
        return link(schema["$ref"].rpartition("/")[2])
    if "enum" in schema:
        return ", ".join(_code(value) for value in schema["enum"])
    if schema.get("type") == "array":
        items = next((schema[key] for key in ("items", "anyOf") if key in schema), {})
        inner = " or ".join(takes(each.get("items", each)) for each in items) if isinstance(items, list) else takes(items)
        return f"list{_range(schema, 'Items', ' of', '')}: {inner}"
    if "anyOf" in schema:
        return " or ".join(takes(each) for each in schema["anyOf"] if each != {"type": "null"})
    kind = schema.get("type", "anything")
    if kind == "object":
        values = schema.get("additionalProperties", {})
        inner = f", values: {takes(values)}" if isinstance(values, dict) and values else ""
        return f"object{_range(schema, 'Properties', ' of', ' fields')}{inner}"
    if kind == "string":
        return f"string{_range(schema, 'Length', ' of', ' characters')}"
    return f"{kind}{_numbers(schema)}"


def _range(schema: dict[str, Any], what: str, before: str, after: str) -> str:
    low, high = schema.get(f"min{what}"), schema.get(f"max{what}")
    if low is None and high is None:
        return ""
    if high is None:
        return f"{before} at least {low:,}{after}"
    return f"{before} at most {high:,}{after}" if low is None else f"{before} {low:,} to {high:,}{after}"


def _numbers(schema: dict[str, Any]) -> str:
    low, above, high = (schema.get(key) for key in ("minimum", "exclusiveMinimum", "maximum"))
    words = []
    if low is not None:
        words.append(f"from {low:,g}" if abs(low) < 1e6 else f"from {low:,}")
    if above is not None:
        words.append(f"above {above:,g}")
    if high is not None:
        words.append(f"to {high:,g}" if abs(high) < 1e6 else f"to {high:,}")
    if "not" in schema:
        words.append(f"but {_code(schema['not']['const'])}")
    return "".join(f" {word}" for word in words)


def _code(value: Any) -> str:
    return f"`{json.dumps(value)}`"


def options_page() -> str:
    """docs/reference/options.md."""
    told = (
        "Each option is a flag (`--port 8000`), an environment variable (`MILLSTREAM_PORT=8000`; several values with spaces "
        "between them) and a line of the YAML file that `--config` names (`port: 8000`; several values as a list). A flag "
        "beats the environment, and the environment the file. The start says in its log which options are not their defaults, "
        "and why; `millstream serve --dry-run`, with `--json` for programs, says what would be served and how much memory it "
        "would take."
    )
    return "\n\n".join(["# Options of `millstream serve`", MADE, told, *options()]) + "\n"


def api_page() -> str:
    """docs/reference/api.md."""
    api = describe_api(ROUTES)
    parts = [
        "# Endpoints and fields",
        MADE,
        "`GET /v1/capabilities` says the same to programs, and `GET /openapi.json` as an OpenAPI document. How answers look "
        "is in [api.md](../api.md).",
        "## Endpoints",
        "The key column says whose key an endpoint takes where the server has keys: see [api.md](../api.md#keys-and-pages).",
        endpoints(api),
        "## Bodies",
        "A field that is on no list is refused with 400: a typo must not pass in silence. `null` equals absent.",
    ]
    for name, body in api["bodies"].items():
        parts += [f"### {name}", *fields(body)]
    return "\n\n".join(parts) + "\n"


def metrics_page() -> str:
    """docs/reference/metrics.md."""
    rows = ["| metric | kind | labels | meaning |", "| --- | --- | --- | --- |"]
    for family in families():
        labels = ", ".join(f"`{label}`" for label in family.labels)
        rows.append(f"| `{family.exported}` | {family.kind} | {labels} | {family.help} |")
    aliases = ["| alias | stands for |", "| --- | --- |"]
    aliases += [f"| `{alias.exported}` | `{alias.family.exported}` |" for alias in ALIASES]
    told = "What they count exactly, and what becomes of them when a process dies, is in [metrics.md](../metrics.md)."
    return "\n\n".join(["# Metrics", MADE, told, "\n".join(rows), "## Aliases", "\n".join(aliases)]) + "\n"


def main() -> int:
    """Write or check; returns the exit status."""
    pages = {
        FOLDER / "options.md": options_page(),
        FOLDER / "api.md": api_page(),
        FOLDER / "metrics.md": metrics_page(),
    }
    if "--check" in sys.argv:
        return int(any(not path.exists() or path.read_text() != text for path, text in pages.items()))
    FOLDER.mkdir(exist_ok=True)
    for path, text in pages.items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
