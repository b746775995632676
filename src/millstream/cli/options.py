"""Options of `millstream serve` as the command line has them: grouped, from flags, environment and a YAML file, in this order.

`Options` is `ServerConfig` with a heading over each group; `Sources` knows where each value came from.
"""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

from cyclopts import App, CycloptsError, Group, Parameter
from cyclopts.argument import Argument, ArgumentCollection
from cyclopts.token import Token

from millstream.config import GROUPS, SECRETS, ServerConfig

_INTEGER = re.compile(r"\s*[+-]?[0-9][0-9_]*\s*")


def _make_options() -> type[ServerConfig]:
    hints = get_type_hints(ServerConfig)
    members: list[tuple[str, Any, Any]] = []
    for group in GROUPS:
        heading = Group.create_ordered(title(group))
        for option in dataclasses.fields(group):
            parameter = Parameter(group=heading, show_default=option.default not in (None, (), False))
            kept = dataclasses.field(default=option.default, repr=option.repr)
            members.append((option.name, Annotated[hints[option.name], parameter], kept))
    made = dataclasses.make_dataclass("Options", members, bases=(ServerConfig,), frozen=True, kw_only=True)
    made.__module__ = __name__
    return made


def title(group: type) -> str:
    """The heading of a group of options."""
    return (group.__doc__ or "").partition(":")[0].rstrip(".")


if TYPE_CHECKING:
    Options = ServerConfig
else:
    Options = _make_options()


class Sources:
    """The last step of reading the command line: adds what the file says where nothing else did, and notes what said what."""

    def __init__(self) -> None:
        self._by_option: dict[str, str] = {}

    def __call__(self, app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
        """Called by cyclopts with all arguments, once flags and environment are read.

        Raises:
            StartupError: the file is wrong.
            CycloptsError: an option that takes a whole number got another.
        """
        self._by_option = {}
        options = {name: each for each in arguments if (name := _option_name(each)) in _NAMES}
        for argument in options.values():
            _check_integer(argument)
        file = next((each.tokens[0].value for each in arguments if each.name == "--config" and each.tokens), None)
        if file is not None:
            self._read(file, options)
        for name, argument in options.items():
            if argument.tokens:
                self._by_option[name] = _source(argument.tokens[0])

    def differences(self, config: ServerConfig) -> dict[str, tuple[Any, str]]:
        """Every option that is not its default, with its value (secrets counted) and where it came from."""
        found = {}
        for group in GROUPS:
            for option in dataclasses.fields(group):
                value = getattr(config, option.name)
                if value != option.default:
                    shown = f"{len(value)} hidden" if option.name in SECRETS else value
                    found[option.name] = (shown, self._by_option.get(option.name, "argument"))
        return found

    def _read(self, file: str, options: dict[str, Argument]) -> None:
        from millstream.cli.config_file import read_config_file  # only where there is one: it loads the YAML parser

        for name, given in read_config_file(file).items():
            if name in options and not options[name].tokens:
                source = f"{file}, line {given.line}"
                options[name].append(Token(keyword=name, source=source, implicit_value=given.value))


_NAMES = {option.name for option in dataclasses.fields(ServerConfig)}


def _option_name(argument: Argument) -> str:
    return argument.name.removeprefix("--").replace("-", "_")


def _check_integer(argument: Argument) -> None:
    """cyclopts rounds 3.7 to an integer."""
    if argument.hint in (int, int | None):
        for token in argument.tokens:
            if not _INTEGER.fullmatch(token.value):
                given = token.keyword or argument.name
                raise CycloptsError(msg=f"Invalid value for {given}: `{token.value[:100]}` is not a whole number.")


def _source(token: Token) -> str:
    return {"cli": "flag", "env": f"environment, {token.keyword}"}.get(token.source, token.source)
