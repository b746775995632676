"""The YAML file of `--config`: names of options and their values, each checked against the option's type, with its line.

Read once, by the command. Only plain data is made of it: the safe loader knows no other tags.
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import msgspec
import yaml

from millstream.config import ServerConfig
from millstream.errors import StartupError


class FileValue(NamedTuple):
    """An option's value, and the line it stands on, counted from 1."""

    value: Any
    line: int


def read_config_file(path: str) -> dict[str, FileValue]:
    """The options that the file gives, by their names with underscores. An option set to null is not given.

    Raises:
        StartupError: the file cannot be read, is not YAML, or has a key or a value that no option takes; says the line.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise StartupError(f"config: `{path}` cannot be read: {error}") from None
    try:
        loader = yaml.SafeLoader(text)
        return _typed(loader, _pairs(loader.get_single_node(), path), path)
    except yaml.MarkedYAMLError as error:
        line = "" if error.problem_mark is None else f", line {error.problem_mark.line + 1}"
        raise StartupError(f"{path}{line} is not YAML: {error.problem}") from None
    except yaml.YAMLError as error:
        raise StartupError(f"{path} is not YAML: {' '.join(str(error).split())}") from None


def _pairs(node: yaml.Node | None, path: str) -> list[tuple[yaml.Node, yaml.Node]]:
    if node is None:
        return []  # an empty file
    if not isinstance(node, yaml.MappingNode):
        raise StartupError(f"{path}, line {node.start_mark.line + 1}: a list of `option: value` lines is needed")
    return list(node.value)


def _typed(loader: yaml.SafeLoader, pairs: list[tuple[yaml.Node, yaml.Node]], path: str) -> dict[str, FileValue]:
    types = get_type_hints(ServerConfig)
    names = {option.name for option in fields(ServerConfig)}
    found: dict[str, FileValue] = {}
    for key_node, value_node in pairs:
        key = loader.construct_object(key_node, deep=True)
        line = key_node.start_mark.line + 1
        name = str(key).replace("-", "_")
        if name not in names:
            raise StartupError(f"{path}, line {line}: there is no option `{key}`", hint=_nearest(name, names))
        if name in found:
            raise StartupError(f"{path}, line {line}: `{key}` is given twice, first in line {found[name].line}")
        value = loader.construct_object(value_node, deep=True)
        if value is not None:
            found[name] = FileValue(_converted(name, value, types[name], f"{path}, line {line}"), line)
    return found


def _converted(name: str, value: Any, kind: Any, where: str) -> Any:
    if isinstance(value, str) and kind == tuple[str, ...]:
        value = [value]  # one of a list needs no list
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        text = str(error).partition(" - at ")[0]
        if choices := [word for each in (kind, *get_args(kind)) if get_origin(each) is Literal for word in get_args(each)]:
            text = f"it must be one of {', '.join(choices)}"
        hint = "write it in quotes" if "Expected `str" in text and isinstance(value, int | float | list) else None
        raise StartupError(f"{where}: `{name}` is wrong: {text}", hint=hint) from None


def _nearest(name: str, names: set[str]) -> str:
    import difflib  # only for a mistake

    near = difflib.get_close_matches(name, names, n=1)
    return f"did you mean `{near[0]}`?" if near else "`millstream serve --help` lists them"
