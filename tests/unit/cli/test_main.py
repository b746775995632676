"""The command line: flags, environment and the positional model become one configuration."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest

from millstream.cli import main
from millstream.cli.options import title
from millstream.config import GROUPS, ServerConfig
from millstream.messages import EngineInfo


class FakeSupervisor:
    """Stands in for the supervisor and keeps what it was given."""

    seen: ServerConfig

    def __init__(self, config: ServerConfig, on_ready: object) -> None:
        FakeSupervisor.seen = config

    def run(self) -> None:
        """A server that stops at once."""


@pytest.fixture
def supervisor(monkeypatch: pytest.MonkeyPatch) -> type[FakeSupervisor]:
    monkeypatch.setattr(main, "Supervisor", FakeSupervisor)
    return FakeSupervisor


def run(*arguments: str) -> int:
    return main.run(["serve", *arguments])


def test_flags_reach_the_configuration(supervisor: type[FakeSupervisor]) -> None:
    assert run("--executor", "scripted", "--port", "0", "--scripted-step-ms", "2.5", "--disable-radix-cache") == 0
    assert supervisor.seen.port == 0
    assert supervisor.seen.scripted_step_ms == 2.5
    assert supervisor.seen.disable_radix_cache
    assert supervisor.seen.served_model_name == ("scripted", "smollm2-135m-instruct", "smollm2")


def test_the_environment_gives_defaults_and_flags_win(
    supervisor: type[FakeSupervisor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLSTREAM_EXECUTOR", "scripted")
    monkeypatch.setenv("MILLSTREAM_PORT", "1234")
    monkeypatch.setenv("MILLSTREAM_MODEL", "from-environment")
    assert run("--port", "4321") == 0
    assert supervisor.seen.port == 4321
    assert supervisor.seen.model == "from-environment"
    assert run("--model", "from-flag") == 0
    assert supervisor.seen.model == "from-flag"
    monkeypatch.delenv("MILLSTREAM_MODEL")
    assert run("from-argument") == 0
    assert supervisor.seen.model == "from-argument"


def test_two_different_models_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("one", "--model", "another") == 1
    assert "two models" in capsys.readouterr().err


def test_several_names_may_follow_one_flag(supervisor: type[FakeSupervisor]) -> None:
    assert run("--executor", "scripted", "--served-model-name", "a", "b", "--port", "0") == 0
    assert supervisor.seen.served_model_name == ("a", "b")


def test_keys_come_from_flags_environment_and_files(
    supervisor: type[FakeSupervisor], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "keys"
    file.write_text("# ours\n\n  from-file  \nsécond\n")
    arguments = ("--executor", "scripted", "--api-key", "one", "--api-key", "two", "--api-key-file", str(file))
    assert run(*arguments, "--admin-api-key-file", str(file)) == 0
    assert supervisor.seen.api_key == ("one", "two", "from-file", "sécond")
    assert supervisor.seen.admin_api_key == ("from-file", "sécond")
    assert "two" not in repr(supervisor.seen)
    monkeypatch.setenv("MILLSTREAM_API_KEY", "secret")
    assert run("--executor", "scripted") == 0
    assert supervisor.seen.api_key == ("secret",)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(("--api-key", ""), "empty", id="empty"),
        pytest.param(("--api-key", "a b"), "space", id="two words"),
        pytest.param(("--admin-api-key", " "), "admin_api_key", id="blank"),
        pytest.param(("--api-key", "key", "embedded"), "name the model before", id="the model taken for a key"),
        pytest.param(("--api-key", "key", "/etc"), "name the model before", id="a path taken for a key"),
        pytest.param(("--api-key-file", "no/such/file"), "no/such/file", id="no such file"),
        pytest.param(("--api-key-file", "/dev/null"), "has no key", id="an empty file"),
        pytest.param(("--allowed-origins", "example.com"), "allowed_origins", id="no origin"),
        pytest.param(("--allowed-origins", "https://a.b/path"), "allowed_origins", id="an origin with a path"),
    ],
)
def test_keys_and_origins_that_cannot_be_meant_are_refused(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--executor", "scripted", *arguments) == 1
    assert message in capsys.readouterr().err


def test_an_open_server_without_a_key_is_warned_of(
    supervisor: type[FakeSupervisor], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(main, "configure_logging", lambda *_: None)  # it would take the records away from the test
    for arguments, warned in (((), 0), (("--host", "0.0.0.0"), 1), (("--host", "0.0.0.0", "--api-key", "k"), 0)):
        caplog.clear()
        assert run("--executor", "scripted", *arguments) == 0
        assert sum("has no --api-key" in record.message for record in caplog.records) == warned


def test_a_model_that_is_not_there_is_an_error_with_a_hint(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("no/such/model.gguf") == 1
    assert "no/such/model.gguf" in capsys.readouterr().err


def test_an_impossible_option_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--executor", "scripted", "--page-size", "0") == 1
    assert "page_size" in capsys.readouterr().err


def test_the_banner_shows_how_to_talk_to_the_server() -> None:
    engine = EngineInfo(
        vocab_size=1, context_length=8192, eos_token_ids=[], num_pages=4, page_size=16, max_running_requests=2, executor="torch"
    )
    text = main.ready_banner("http://127.0.0.1:30000", "some-model", engine)
    assert "curl http://127.0.0.1:30000/v1/chat/completions" in text
    assert 'base_url="http://127.0.0.1:30000/v1"' in text
    assert text.count("some-model") >= 3
    assert "Authorization" not in text
    keyed = main.ready_banner("http://127.0.0.1:30000", "some-model", engine, needs_key=True)
    assert "-H 'Authorization: Bearer KEY'" in keyed
    assert 'api_key="KEY"' in keyed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--prot", "1"), "Unknown option: --prot"),
        (("--port", "x"), "--port"),
        (("--port", "3.7"), "`3.7` is not a whole number"),
        (("--executor", "fast"), "native"),
        (("--port",), "--port"),
        (("one", "two"), "two"),
    ],
)
def test_a_wrong_flag_is_one_line_and_status_2(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("millstream: ")
    assert message in line


def test_a_wrong_variable_of_the_environment_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MILLSTREAM_PORT", "eighty")
    assert run() == 2
    assert "MILLSTREAM_PORT" in capsys.readouterr().err


@pytest.mark.parametrize("columns", [80, 120])
def test_the_help_has_the_options_under_the_titles_of_their_groups(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert run("--help") == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= columns
    positions = [text.index(f" {title(group)} ─") for group in GROUPS]
    assert positions == sorted(positions)
    for group, start, end in zip(GROUPS, positions, [*positions[1:], len(text)], strict=True):
        for option in dataclasses.fields(group):
            assert f"--{option.name.replace('_', '-')}"[:20] in text[start:end]  # long names are broken in two


def test_the_start_says_which_options_differ_from_the_defaults_and_why(
    supervisor: type[FakeSupervisor], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "server.yaml"
    file.write_text("executor: scripted\napi_key: [geheim]\nlog_level: info\n")
    monkeypatch.setenv("MILLSTREAM_MAX_RUNNING_REQUESTS", "8")
    assert run("--port", "0", "--config", str(file)) == 0
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "options:" in line]
    assert "port=0 (flag)" in line
    assert "max_running_requests=8 (environment, MILLSTREAM_MAX_RUNNING_REQUESTS)" in line
    assert f"executor=scripted ({file}, line 1)" in line
    assert f"api_key=1 hidden ({file}, line 2)" in line
    assert "geheim" not in line
    assert "log_level" not in line


@pytest.mark.parametrize("command", [name for name in main.app if not name.startswith("-")])
def test_the_help_of_every_command_ends_with_examples_of_it(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run([command, "--help"]) == 0
    assert f"millstream {command}" in capsys.readouterr().out.partition("Examples:")[2]


def test_a_reader_that_has_read_enough_is_no_failure_to_speak_of() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        command = [sys.executable, "-m", "millstream", "env"]
        ended = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, timeout=60, check=False)
    finally:
        os.close(writing)
    assert (ended.returncode, ended.stderr) == (141, b"")
