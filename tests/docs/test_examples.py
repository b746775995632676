"""What the documents tell a reader to type works as it is written there."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.server import running_server

ROOT = Path(__file__).parent.parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/*.md")])
DEFAULT_URL = "http://127.0.0.1:30000"


class Block(NamedTuple):
    """A block of code in a document."""

    document: str
    language: str
    text: str


BLOCKS = [
    Block(path.name, language, text)
    for path in DOCUMENTS
    for language, text in re.findall(r"^```(\w*)\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL)
]


def blocks(language: str, containing: str = "") -> list[Block]:
    """The blocks of one language that have `containing` in them; there is at least one."""
    found = [block for block in BLOCKS if block.language == language and containing in block.text]
    assert found, (language, containing)
    return found


def run_python(source: str) -> str:
    """Run a program as a reader would; returns what it printed."""
    return subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True, timeout=120).stdout


@pytest.mark.parametrize("block", blocks("json"), ids=lambda block: block.document)
def test_every_json_example_is_json(block: Block) -> None:
    json.loads(block.text)


@pytest.mark.parametrize("block", blocks("", "millstream serve"), ids=lambda block: block.document)
def test_every_option_in_a_command_is_one(block: Block) -> None:
    known = (ROOT / "docs" / "reference" / "options.md").read_text()
    for line in block.text.splitlines():
        if line.startswith("millstream serve"):
            for option in re.findall(r"--[\w-]+", line):
                assert option in {"--config", "--dry-run", "--json"} or f"`{option}`" in known, option


@pytest.mark.long
def test_the_clients_of_the_readme_are_answered(model_server: str) -> None:
    (program,) = blocks("python", "openai")
    assert run_python(program.text.replace(DEFAULT_URL, model_server))
    (command,) = (block for block in blocks("", "curl ") if block.document == "README.md")
    answer = subprocess.run(
        ["bash", "-c", command.text.replace(DEFAULT_URL, model_server)], capture_output=True, check=True, timeout=60
    )
    assert json.loads(answer.stdout)["choices"][0]["message"]["content"]


@pytest.mark.long
def test_the_program_of_the_engine_s_page_prints_an_answer() -> None:
    (program,) = blocks("python", "import Engine")
    assert "Paris" in run_python(program.text)


@pytest.mark.long
def test_the_script_and_the_command_of_the_scripted_executor_work(tmp_path: Path, scripted_server: str) -> None:
    (script,) = (block for block in blocks("json") if block.document == "scripted-executor.md")
    path = tmp_path / "script.json"
    path.write_text(script.text)
    with running_server("--executor", "scripted", "--script", str(path)):
        pass
    (command,) = (block for block in blocks("", "curl ") if block.document == "scripted-executor.md")
    answer = subprocess.run(
        ["bash", "-c", command.text.replace(DEFAULT_URL, scripted_server)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert '"content":"a"' in answer.stdout
    assert '"error"' in answer.stdout
