"""Commands that the documents show behind a prompt can be typed: each is run, with the scripted server where it needs one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
FILES = {
    "notes.txt": "A mill stands by a stream.\n",
    "questions.jsonl": '"What is a mill?"\n{"prompt": "What is a stream?", "max_tokens": 8}\n',
}
LIMIT_S = 110


def commands(document: str) -> list[str]:
    """What stands behind `$ ` in the console blocks of a document."""
    blocks = re.findall(r"^```console\n(.*?)^```", (ROOT / document).read_text(), re.MULTILINE | re.DOTALL)
    return [line[2:] for block in blocks for line in block.splitlines() if line.startswith("$ ")]


@pytest.mark.long
@pytest.mark.parametrize("command", commands("docs/cli.md"))
def test_a_command_in_the_documents_can_be_typed(command: str, scripted_server: str, tmp_path: Path) -> None:
    program = tmp_path / "bin" / "millstream"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m millstream "$@"\n')
    program.chmod(0o755)
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"  # noqa: TID251
    environment = {**os.environ, "PATH": path, "MILLSTREAM_URL": scripted_server}  # noqa: TID251
    ended = subprocess.run(
        ["bash", "-c", command], cwd=tmp_path, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr}"
