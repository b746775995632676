"""Published chat templates, as the models' own GGUF files have them: `make test` fetched them into the virtual environment."""

from __future__ import annotations

import ast
import functools
import re

from tests.support.published_tokenizers import published_directory

TEMPLATES_FILE = "chat-template-automap.ts"
# the file is a list of objects in TypeScript, whose strings are written as Python's are
_ENTRY = re.compile(r'model:\s*("[^"]+"),\s*gguf:\s*("(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\')')


@functools.cache
def published_templates() -> dict[str, str]:
    """The templates by the models' names, equal ones once; the test is skipped where they are not there."""
    text = (published_directory("chat_templates") / TEMPLATES_FILE).read_text(encoding="utf-8")
    found: dict[str, str] = {}
    for model, template in _ENTRY.findall(text):
        source = ast.literal_eval(template)
        if source not in found.values():
            found[ast.literal_eval(model).removeprefix("library/")] = source
    return found
