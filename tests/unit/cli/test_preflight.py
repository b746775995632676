"""`millstream doctor` where no server runs: whether one could."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from millstream.cli import machine, main, preflight
from millstream.config import ServerConfig
from millstream.text.tokenizer import Tokenizer

SCRIPTED = ("--executor", "scripted")
NAMES = ["options", "model", "tokenizer", "template", "ends", "grammar", "executor", "memory", "open files", "cache", "port"]


def installation(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """Status and findings; `--url` would be a server's, and at port 0 there is none."""
    status = main.run(["doctor", "--port", "0", "--json", *arguments])
    found = json.loads(capsys.readouterr().out)
    assert found["ok"] == (status == 0)
    return status, {check["name"]: check for check in found["checks"]}


@pytest.fixture(autouse=True)
def enough_of_everything(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whatever this machine allows."""
    monkeypatch.setattr(machine, "open_files", lambda: 65536)
    monkeypatch.setattr(machine, "usable_memory", lambda: 64 << 30)
    monkeypatch.setenv("MILLSTREAM_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def plain_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the proof of the faster one, which is most of the time."""
    monkeypatch.setattr(Tokenizer, "load_fast_encoder", lambda _: None)


def test_everything_is_looked_at(capsys: pytest.CaptureFixture[str]) -> None:
    status, checks = installation(capsys, *SCRIPTED)
    assert (status, list(checks)) == (0, NAMES)
    assert "decodes by byte table" in checks["tokenizer"]["detail"]
    assert checks["template"]["detail"] == "`default` renders user, assistant, system, tool"
    assert "`<|im_end|>`" in checks["ends"]["detail"]
    assert checks["port"]["detail"].endswith("is free")


@pytest.mark.usefixtures("plain_encoder")
@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        pytest.param(("--model", "no/such.gguf"), "model", id="no-such-model"),
        pytest.param((*SCRIPTED, "--page-size", "0"), "options", id="bad-option"),
        pytest.param((*SCRIPTED, "--chat-template", "no-such.jinja"), "tokenizer", id="no-such-template"),
        pytest.param((*SCRIPTED, "--host", "256.0.0.1"), "port", id="no-such-host"),
        pytest.param((*SCRIPTED, "--max-connections", "100000"), "open files", id="too-few-files"),
        pytest.param((*SCRIPTED, "--cache-dir", "/dev/null/cache"), "cache", id="no-cache"),
    ],
)
def test_what_keeps_the_installation_from_serving_is_named(
    arguments: tuple[str, ...], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, checks = installation(capsys, *arguments)
    assert status == 1
    assert not checks[name]["ok"]


@pytest.mark.usefixtures("plain_encoder")
def test_a_template_that_knows_no_users_fails_and_one_without_tools_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    template = tmp_path / "template.jinja"
    each = "{% for m in messages %}%s{{ m.role }}: {{ m.content }}<|im_end|>{% endfor %}"
    template.write_text(each.replace("%s", "{% if m.role == 'user' %}{{ raise_exception('no users') }}{% endif %}"))
    status, checks = installation(capsys, *SCRIPTED, "--chat-template", str(template))
    assert status == 1
    assert "renders no user" in checks["template"]["detail"]
    assert checks["template"]["hint"]
    template.write_text(each.replace("%s", "{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"))
    status, checks = installation(capsys, *SCRIPTED, "--chat-template", str(template))
    assert (status, checks["template"]["detail"]) == (0, "`default` renders user, assistant, system; refuses tool")


@pytest.mark.usefixtures("plain_encoder")
def test_a_server_that_would_not_fit_is_told_what_would(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(machine, "usable_memory", lambda: 1 << 20)
    status, checks = installation(capsys, *SCRIPTED)
    assert status == 1
    assert "1 MiB to be had" in checks["memory"]["detail"]
    assert "--max-total-tokens" in checks["memory"]["hint"]


@pytest.mark.usefixtures("plain_encoder")
def test_a_template_whose_end_of_turn_ends_nothing_is_pointed_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    template = tmp_path / "template.jinja"
    template.write_text("{% for m in messages %}{{ m.role }}: {{ m.content }}[END]{% endfor %}")
    assert "ordinary text" in installation(capsys, *SCRIPTED, "--chat-template", str(template))[1]["ends"]["detail"]


def test_a_file_that_is_no_model_fails_where_it_is_first_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.gguf").write_bytes(b"nonsense")
    status, checks = installation(capsys, "--model", str(tmp_path / "x.gguf"))
    assert status == 1
    assert checks["model"]["ok"]
    assert not checks["tokenizer"]["ok"]
    assert not checks["executor"]["ok"]
    assert "memory" not in checks


def test_the_embedded_model_can_be_served_here(capsys: pytest.CaptureFixture[str]) -> None:
    status, checks = installation(capsys)
    assert status == 0, checks
    assert "expected SHA-256" in checks["model"]["detail"]
    assert checks["executor"]["detail"].startswith(("native kernels ", "torch "))


@pytest.mark.usefixtures("plain_encoder")
def test_nothing_is_made(tmp_path: Path) -> None:
    wanted = tmp_path / "a" / "b"
    checks = preflight.check_installation(ServerConfig(executor="scripted", port=0, cache_dir=str(wanted)))
    assert all(check.ok for check in checks)
    assert list(tmp_path.iterdir()) == []
