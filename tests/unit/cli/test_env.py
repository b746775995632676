"""`millstream env`: what it says of where it runs, and how it reads what a system says."""

from __future__ import annotations

import json
import resource
from pathlib import Path

import pytest

from millstream import __version__
from millstream.cli import machine, main


def test_the_report_has_versions_and_what_can_be_used(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["env", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["millstream"] == __version__
    assert found["libraries"]["numpy"]
    assert found["executors"].keys() == {"native", "torch", "scripted"}
    assert found["memory"]["total_bytes"] > 1 << 20
    assert found["processor"]["usable_cores"] >= 1
    native = found["executors"]["native"]
    assert (native["instruction_set"] is None) != (native["why_not"] is None)
    assert main.run(["env"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("millstream ")
    assert "numpy" in text


def test_secrets_of_the_environment_are_not_in_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("MILLSTREAM_API_KEY", "geheim")
    assert main.run(["env", "--json"]) == 0
    assert "geheim" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("files", "cores", "limit"),
    [
        ({}, None, None),
        ({"cpu.max": "max 100000", "memory.max": "max"}, None, None),
        ({"cpu.max": "150000 100000", "memory.max": "1024\n"}, 1.5, 1024),
    ],
    ids=["none", "unlimited", "limited"],
)
def test_limits_of_a_container_are_seen(
    files: dict[str, str], cores: float | None, limit: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(machine, "CGROUP", tmp_path)
    assert machine.cgroup_cores() == cores
    assert machine.memory()["cgroup_bytes"] == limit
    assert machine.usable_memory() <= (limit or machine.usable_memory())


def test_the_hard_limit_of_open_files_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1, 4096))
    assert machine.open_files() == 4096
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1, resource.RLIM_INFINITY))
    assert machine.open_files() is None
