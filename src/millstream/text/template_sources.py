"""Where chat templates come from: the model's own, by name; those that come with the package; a file of the operator.

Called while a tokenizer is loaded. `default` is the name of the one for any conversation, `tool_use` of the one for tools,
where a model has its own for that.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import msgspec

from millstream.errors import StartupError

DEFAULT = "default"
TOOL_USE = "tool_use"
BUILTIN = ("chatml", "gemma", "llama-2", "llama-3", "mistral", "phi-3", "zephyr")


def choose_templates(option: str | None, own: dict[str, str]) -> dict[str, str]:
    """The templates to use, by name: what `--chat-template` names in place of `own`, the model's; a model may have none.

    A name of the model's own comes before one of the package's, and both before a file's.

    Raises:
        StartupError: the option names nothing, or its file cannot be read.
    """
    if option is None:
        return own
    if option in own:
        return {DEFAULT: own[option]}
    if option in BUILTIN:
        return {DEFAULT: builtin_template(option)}
    path = Path(option)
    if not path.is_file():
        names = [*(f"`{name}` (the model's own)" for name in own), *(f"`{name}`" for name in BUILTIN)]
        raise StartupError(
            f"the chat template `{option}` cannot be read: it is no file, and no name.",
            hint=f"pass a file to --chat-template, or one of {', '.join(names)}",
        )
    return {DEFAULT: read_template(path)}


def builtin_template(name: str) -> str:
    """One of `BUILTIN`."""
    return (resources.files("millstream.text") / "assets" / "templates" / f"{name}.jinja").read_text(encoding="utf-8")


def read_template(path: Path) -> str:
    """A file of Jinja; of JSON, in a `.json` file, it is the member `chat_template`.

    Raises:
        StartupError: it cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise StartupError(f"the chat template `{path}` cannot be read: {error}.", hint="check --chat-template") from None
    if path.suffix != ".json":
        return text
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise StartupError(f"the chat template `{path}` cannot be read: {error}.") from None
    template = value.get("chat_template") if isinstance(value, dict) else None
    if not isinstance(template, str):
        raise StartupError(f"the chat template `{path}` cannot be read: it has no text under `chat_template`.")
    return template


def named_templates(value: object) -> dict[str, str]:
    """The templates that a tokenizer's configuration holds: one text, or a list of objects with `name` and `template`."""
    if isinstance(value, str):
        return {DEFAULT: value}
    items = value if isinstance(value, list) else []
    return {
        str(item["name"]): item["template"]
        for item in items
        if isinstance(item, dict) and "name" in item and isinstance(item.get("template"), str)
    }
