"""The YAML file of `--config`: any option, checked with its line; flags and the environment beat it."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.cli import main
from millstream.cli.config_file import read_config_file
from millstream.config import ServerConfig
from millstream.errors import StartupError


class FakeSupervisor:
    """Keeps what it was given."""

    seen: ServerConfig

    def __init__(self, config: ServerConfig, on_ready: object) -> None:
        FakeSupervisor.seen = config

    def run(self) -> None:
        """A server that stops at once."""


@pytest.fixture(autouse=True)
def supervisor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main, "Supervisor", FakeSupervisor)


def serve(file: Path, *arguments: str) -> int:
    return main.run(["serve", "--config", str(file), *arguments])


ALL = """
# a server of ours
executor: scripted
port: 8100
served-model-name: [a, b]
api_key:
  - "123"
  - geheim
admin_api_key: one
scripted_step_ms: 2
disable-radix-cache: true
request_timeout_s: 1.5
context_length: null
"""


def test_options_of_every_kind_come_from_the_file(tmp_path: Path) -> None:
    file = tmp_path / "server.yaml"
    file.write_text(ALL)
    assert serve(file) == 0
    seen = FakeSupervisor.seen
    assert (seen.executor, seen.port, seen.served_model_name) == ("scripted", 8100, ("a", "b"))
    assert (seen.api_key, seen.admin_api_key) == (("123", "geheim"), ("one",))
    assert (seen.scripted_step_ms, seen.disable_radix_cache, seen.request_timeout_s) == (2.0, True, 1.5)
    assert seen.context_length is None
    assert type(seen) is ServerConfig


def test_a_flag_beats_the_environment_and_the_environment_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "server.yaml"
    file.write_text("executor: scripted\nport: 1\npage_size: 32\nmax_running_requests: 7\ndisable_radix_cache: true\n")
    monkeypatch.setenv("MILLSTREAM_PORT", "2")
    monkeypatch.setenv("MILLSTREAM_PAGE_SIZE", "48")
    assert serve(file, "--port", "3", "--disable-radix-cache=false") == 0
    seen = FakeSupervisor.seen
    assert (seen.port, seen.page_size, seen.max_running_requests, seen.disable_radix_cache) == (3, 48, 7, False)


def test_the_environment_may_name_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "server.yaml"
    file.write_text("executor: scripted\nport: 77\n")
    monkeypatch.setenv("MILLSTREAM_CONFIG", str(file))
    assert main.run(["serve"]) == 0
    assert FakeSupervisor.seen.port == 77


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("prot: 1\n", "line 1: there is no option `prot`", id="unknown"),
        pytest.param("\n\nport: x\n", "line 3: `port` is wrong: Expected `int`, got `str`", id="a word for a number"),
        pytest.param("port: 3.5\n", "line 1: `port` is wrong", id="a fraction"),
        pytest.param("port: yes\n", "line 1: `port` is wrong", id="a truth for a number"),
        pytest.param("port: [1]\n", "line 1: `port` is wrong", id="a list for a number"),
        pytest.param("api_key: 123\n", "line 1: `api_key` is wrong", id="a number for a key"),
        pytest.param("api_key: [123]\n", "line 1: `api_key` is wrong", id="a number among keys"),
        pytest.param("executor: fast\n", "it must be one of auto, native, torch, scripted", id="no such choice"),
        pytest.param("speculative_algorithm: x\n", "it must be one of ngram", id="no such choice of a thing that may be off"),
        pytest.param("port: 1\npage-size: 16\npage_size: 16\n", "line 3: `page_size` is given twice", id="twice"),
        pytest.param("- port: 1\n", "line 1: a list of `option: value` lines", id="a list"),
        pytest.param("port\n", "line 1: a list of `option: value` lines", id="a word"),
        pytest.param("port: [1,\n", "is not YAML", id="cut off"),
        pytest.param("port: 1\n  x: 2\n", "line 2 is not YAML", id="indentation"),
        pytest.param("port: !!python/name:os.system\n", "is not YAML", id="a tag"),
        pytest.param("? [a]\n: 1\n", "line 1: there is no option", id="a list for a key"),
        pytest.param("port: \x00\n", "is not YAML", id="a null byte"),
    ],
)
def test_what_is_wrong_in_the_file_is_said_with_its_line(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "server.yaml"
    file.write_text(text)
    assert serve(file) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith(f"millstream: {file}")
    assert message in lines[0]
    assert len(lines) <= 2  # a hint


def test_a_value_out_of_range_in_the_file_is_refused_as_it_is_elsewhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "server.yaml"
    file.write_text("port: 99999\n")
    assert serve(file) == 1
    assert "port is 99999" in capsys.readouterr().err


def test_an_empty_file_gives_nothing_and_a_missing_one_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "server.yaml"
    file.write_text("# nothing\n")
    assert read_config_file(str(file)) == {}
    with pytest.raises(StartupError, match="cannot be read"):
        read_config_file(str(tmp_path / "other.yaml"))
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(StartupError, match="cannot be read"):
        read_config_file(str(tmp_path / "bytes.yaml"))
