"""Formats of other packages, as docs/parsers.md shows: installed, found, used, and refused where they are wrong."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from millstream.config import ServerConfig
from millstream.entry.parsers import Parsers, choose_parsers, named_tool_format
from millstream.errors import RequestError, StartupError
from millstream.parsing.draft import Tools
from millstream.parsing.pipeline import Reading
from millstream.parsing.registry import reasoning_format, tool_format, tool_format_names
from tests.support.cuts import parsed_in_any_cut

GUIDE = Path(__file__).parents[3] / "docs" / "parsers.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The guide's package, as an installer leaves it."""
    (tmp_path / "oracle_formats.py").write_text(blocks("python")[0], encoding="utf-8")
    info = tmp_path / "oracle_formats-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: oracle-formats\nVersion: 1.0\n")
    points = blocks("toml")[0].replace('[project.entry-points."', "[").replace('"]', "]").replace('"', "")
    broken = "[millstream.tool_parsers]\nbroken = no_such_module:FORMAT\nabsent = oracle_formats:NOTHING\n"
    (info / "entry_points.txt").write_text(points.replace("[millstream.tool_parsers]\n", broken))
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    return tmp_path


@pytest.mark.usefixtures("package")
def test_the_formats_of_the_guide_are_found_and_their_examples_hold() -> None:
    tools, reasoning = tool_format("oracle"), reasoning_format("oracle")
    assert "oracle" in tool_format_names()
    for example in tools.examples:
        parsed = parsed_in_any_cut(example.text, Reading(tool_format=tools, tools=Tools({"get_weather": None})))
        assert parsed.content == example.content
        assert [(call.name, call.arguments) for call in parsed.calls] == list(example.calls)
        assert parsed.ends_in_calls
    for thought in reasoning.examples:
        parsed = parsed_in_any_cut(thought.text, Reading(reasoning=reasoning))
        assert (parsed.reasoning, parsed.content) == (thought.reasoning, thought.content)
    config = ServerConfig(tool_call_parser="oracle", reasoning_parser="oracle")
    assert choose_parsers(config, {}) == Parsers(tools=tools, reasoning=reasoning)


@pytest.mark.usefixtures("package")
def test_the_programs_of_the_guide_run() -> None:
    exec(compile("\n".join(blocks("python")), str(GUIDE), "exec"), {})


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize("name", ["broken", "absent"])
def test_an_entry_point_that_cannot_be_loaded_stops_the_start_and_refuses_a_request(name: str) -> None:
    with pytest.raises(StartupError, match=f"entry point {name}"):
        choose_parsers(ServerConfig(tool_call_parser=name), {})
    with pytest.raises(RequestError, match=f"entry point {name}") as raised:
        named_tool_format(name, Parsers())
    assert raised.value.param == "tool_call_parser"
