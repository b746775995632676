"""`millstream serve --dry-run`: says what a start would take, and fails where the start would."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from millstream.checkpoint.locate import configured_source
from millstream.cli import main
from millstream.cli.options import Sources
from millstream.cli.plan import make_plan
from millstream.config import ServerConfig
from millstream.execution.registry import load_executor, plan_executor


def no_supervisor(*_: object) -> Any:
    raise AssertionError("a dry run starts nothing")


@pytest.fixture(autouse=True)
def nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main, "Supervisor", no_supervisor)


def plan_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main.run(["serve", "--dry-run", "--json", *arguments]) == 0
    plan: dict[str, Any] = json.loads(capsys.readouterr().out)
    return plan


def test_the_plan_of_a_scripted_server(capsys: pytest.CaptureFixture[str]) -> None:
    plan = plan_of(
        capsys, "--executor", "scripted", "--max-total-tokens", "4096", "--context-length", "1024", "--entry-workers", "2",
        "--api-key", "geheim", "--served-model-name", "a",
    )  # fmt: skip
    assert plan["model"]["names"] == ["a"]
    assert plan["executor"]["name"] == "scripted"
    assert plan["context_length"] == 1024
    assert (plan["kv_cache"]["pages"], plan["kv_cache"]["tokens"], plan["kv_cache"]["full_contexts"]) == (256, 4096, 4)
    assert plan["processes"] == ["supervisor", "entry-0", "entry-1", "scheduler", "detokenizer"]
    assert plan["options"]["api_key"] == {"value": "1 hidden", "source": "flag"}
    assert plan["memory"]["total"] == sum(plan["memory"][part] for part in ("weights", "kv_cache", "processes"))


def test_the_plan_reads_well_and_hides_keys(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["serve", "--dry-run", "--executor", "scripted", "--api-key", "geheim"]) == 0
    text = capsys.readouterr().out
    assert "geheim" not in text
    for word in ("scripted", "131,072 tokens", "supervisor, entry-0", "127.0.0.1:30000", "(flag)"):
        assert word in text


def test_a_port_that_is_taken_does_not_matter(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert plan_of(capsys, "--executor", "scripted", "--port", str(port))["address"] == {"host": "127.0.0.1", "port": port}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("no/such/model.gguf",), "no/such/model.gguf"),
        (("--executor", "scripted", "--page-size", "0"), "page_size"),
        (("--executor", "scripted", "--script", "no/such/script.json"), "no/such/script.json"),
        (("--context-length", "1000000"), "context_length is 1000000"),
        (("--max-total-tokens", "8"), "less than one page"),
        (("--executor", "scripted", "--chat-template", "no/such/template"), "no/such/template"),
    ],
)
def test_what_keeps_a_server_from_starting_ends_a_dry_run_with_1(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["serve", "--dry-run", *arguments]) == 1
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""


def test_json_without_a_dry_run_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["serve", "--json"]) == 1
    assert "--dry-run" in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.parametrize("executor", ["native", "torch"])
def test_the_plan_is_what_loading_then_does(executor: Any, tmp_path: Path) -> None:
    if executor == "native":
        pytest.importorskip("millstream.execution.native._native")
    config = ServerConfig(executor=executor, max_total_tokens=4096, cache_dir=str(tmp_path))
    source = configured_source(config)
    plan = plan_executor(config, source)
    loaded = load_executor(config, source)
    try:
        made = loaded.capabilities
        assert (plan.name, plan.context_length, plan.num_pages) == (made.executor, made.context_length, made.num_pages)
    finally:
        loaded.close()
    whole = make_plan(config, Sources().differences(config))
    assert whole["kv_cache"]["tokens"] == 4096
    assert 50 << 20 < whole["memory"]["weights"] < 1 << 30
