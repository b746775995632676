"""`millstream completion`: a script for each shell that knows every command."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from millstream.cli import main

SHELLS = ("bash", "zsh", "fish")


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_names_every_command_and_the_shell_can_read_it(
    shell: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main.run(["completion", shell]) == 0
    script = capsys.readouterr().out
    for command in main.app:
        assert command.startswith("-") or command in script, command
    assert "--max-running-requests" in script
    if (found := shutil.which(shell)) is not None:
        path = tmp_path / "script"
        path.write_text(script)
        subprocess.run([found, "-n", str(path)], check=True, timeout=60)


def test_another_shell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["completion", "tcsh"]) == 2
    assert "tcsh" in capsys.readouterr().err
