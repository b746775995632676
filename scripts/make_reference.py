"""Write docs/reference.md from the code: every option, and every request field as honoured, without effect, or refused.

python scripts/make_reference.py          write it
python scripts/make_reference.py --check  exit 1 where it is not current
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import sys
from pathlib import Path
from typing import Any

import msgspec

from millstream.config import ServerConfig
from millstream.entry.fields import FieldRules
from millstream.entry.native.protocol import ABORT, DETOKENIZE, GENERATE, SAMPLING, TOKENIZE
from millstream.entry.openai.embeddings_protocol import EMBEDDINGS
from millstream.entry.openai.protocol import CHAT, COMPLETIONS

TARGET = Path(__file__).parent.parent / "docs" / "reference.md"
BODIES: tuple[tuple[str, FieldRules[Any]], ...] = (
    ("`POST /v1/chat/completions`", CHAT),
    ("`POST /v1/completions`", COMPLETIONS),
    ("`POST /v1/embeddings`", EMBEDDINGS),
    ("`POST /generate`", GENERATE),
    ("`sampling_params` of `/generate`", SAMPLING),
    ("`POST /abort_request`", ABORT),
    ("`POST /tokenize`", TOKENIZE),
    ("`POST /detokenize`", DETOKENIZE),
)


def options() -> str:
    """The table of options, with the sentences that stand under them in the code."""
    rows = ["| flag | environment | default | meaning |", "| --- | --- | --- | --- |"]
    sentences = _attribute_docs(ServerConfig)
    for option in dataclasses.fields(ServerConfig):
        default = "" if option.default in (None, ()) else f"`{option.default}`"
        flag, variable = option.name.replace("_", "-"), option.name.upper()
        rows.append(f"| `--{flag}` | `MILLSTREAM_{variable}` | {default} | {sentences[option.name]} |")
    return "\n".join(rows)


def _attribute_docs(owner: type) -> dict[str, str]:
    (body,) = ast.parse(inspect.getsource(owner)).body
    assert isinstance(body, ast.ClassDef)
    docs = {}
    for field, text in zip(body.body, body.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            assert isinstance(field.target, ast.Name)
            docs[field.target.id] = " ".join(str(text.value.value).split())
    return docs


def fields(rules: FieldRules[Any]) -> str:
    """The three lists of one body."""
    honoured = ", ".join(
        f"`{field.name}`" + ("" if not field.required else " (required)") for field in msgspec.structs.fields(rules.honoured)
    )
    lines = [f"Honoured: {honoured}."]
    if rules.without_effect:
        lines.append("Accepted without effect: " + "; ".join(f"`{n}` ({why})" for n, why in rules.without_effect.items()) + ".")
    if rules.refused:
        lines += ["", "| refused with 400 | because | passes all the same, for it asks for nothing |", "| --- | --- | --- |"]
        for name, rule in rules.refused.items():
            neutral = ", ".join(f"`{msgspec.json.encode(value).decode()}`" for value in rule.neutral)
            lines.append(f"| `{name}` | {rule.why} | {neutral} |")
    return "\n".join(lines)


def reference() -> str:
    """The whole document."""
    parts = [
        "# Reference",
        "Made by `python scripts/make_reference.py` from the code; a test fails where it is not current.",
        "## Options of `millstream serve`",
        options(),
        "## Request fields",
        "`null` equals absent. A field that is on no list is refused with 400: a typo must not pass in silence.",
    ]
    for title, rules in BODIES:
        parts += [f"### {title}", fields(rules)]
    return "\n\n".join(parts) + "\n"


def main() -> int:
    """Write or check; returns the exit status."""
    if "--check" in sys.argv:
        return int(TARGET.read_text() != reference())
    TARGET.write_text(reference())
    return 0


if __name__ == "__main__":
    sys.exit(main())
