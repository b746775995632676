"""From start to stop: what the processes are called, what they say while loading, and that nothing of them stays."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from tests.support.faults import alive, kill_supervisor, pids_of
from tests.support.server import Server

SCRIPTED = ("--executor", "scripted")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_server_leaves_no_process_and_no_file(tmp_path: Path, number: signal.Signals) -> None:
    with Server(*SCRIPTED, directory=tmp_path) as server:
        url = server.wait_ready()
        pids = pids_of(url)
        assert set(pids) == {"entry-0", "scheduler", "detokenizer"}
        for name, pid in pids.items():
            assert Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0] == f"millstream::{name}".encode()
        (directory,) = tmp_path.iterdir()
        assert directory.stat().st_mode & 0o777 == 0o700
        assert {path.name for path in directory.iterdir()} == {f"{name}.sock" for name in pids}
        assert server.stop(number) == 0, server.log()
        assert not any(alive(pid) for pid in pids.values())
        assert list(tmp_path.iterdir()) == []


def test_health_and_readiness_say_503_until_everything_is_there(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with Server("--port", str(port), directory=tmp_path) as server:  # the real model: loading takes a moment
        url = f"http://127.0.0.1:{port}"
        seen = []
        deadline = time.monotonic() + 60
        with httpx.Client() as client:
            while time.monotonic() < deadline:
                try:
                    health = client.get(f"{url}/health")
                except httpx.ConnectError:
                    continue
                seen.append(health.status_code)
                if health.status_code == 200:
                    break
                assert "message" in health.json()["error"]
                if len(seen) == 1:  # later it may become ready between two questions
                    assert client.get(f"{url}/v1/models").status_code == 503
                chat = client.post(
                    f"{url}/v1/chat/completions", json={"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
                )
                assert chat.status_code in (200, 503)
            chat = client.post(
                f"{url}/v1/chat/completions", json={"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
            )
            assert chat.status_code == 200
            assert client.get(f"{url}/ready").status_code == 200
        assert seen[0] == 503
        assert seen[-1] == 200
        assert server.stop() == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(("no/such/model.gguf",), "no/such/model.gguf", id="no-such-model"),
        pytest.param(("--executor", "scripted", "--script", "no-such-script.json"), "no-such-script.json", id="no-such-script"),
        pytest.param(("--executor", "scripted", "--chat-template", "no-such.jinja"), "no-such.jinja", id="no-such-template"),
        pytest.param(("--executor", "scripted", "--page-size", "0"), "page_size", id="bad-option"),
    ],
)
def test_a_server_that_cannot_start_says_why_once_and_leaves_nothing(
    tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    with Server(*arguments, directory=tmp_path) as server:
        assert server.wait() == 1
        assert server.log().count("millstream: ") == 1, server.log()
        assert message in server.log()
        assert "Traceback" not in server.log()
        assert list(tmp_path.iterdir()) == []


def test_a_port_in_use_is_a_clear_error(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with Server(*SCRIPTED, "--port", str(port), directory=tmp_path) as server:
            assert server.wait() == 1
            assert str(port) in server.log()
            assert "hint: " in server.log()
        assert list(tmp_path.iterdir()) == []


def test_children_do_not_outlive_a_killed_supervisor(tmp_path: Path) -> None:
    with Server(*SCRIPTED, directory=tmp_path) as server:
        pids = pids_of(server.wait_ready())
        kill_supervisor(server, pids.values())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("victim", ["scheduler", "detokenizer"])
def test_without_restarts_the_death_of_a_process_ends_open_requests_with_an_error_and_the_server(
    tmp_path: Path, victim: str
) -> None:
    with Server(*SCRIPTED, "--scripted-step-ms", "20", "--max-restarts", "0", directory=tmp_path) as server:
        url = server.wait_ready()
        body = {"messages": [{"role": "user", "content": "hi"}], "stream": True, "max_tokens": 5000}
        with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=30) as response:
            lines = response.iter_lines()
            assert "assistant" in next(lines)
            pid = pids_of(url)[victim]
            os.kill(pid, signal.SIGKILL)
            rest = [line for line in lines if line]
        assert '"error"' in rest[-1]
        assert not any('"finish_reason":"stop"' in line for line in rest)
        assert server.wait() == 1
        assert f"the {victim} process ended (killed by SIGKILL)" in server.log()
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_server_that_is_told_to_stop_while_it_loads_stops_and_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    with Server(directory=tmp_path) as server:  # the real model: loading takes a moment
        deadline = time.monotonic() + 60
        while not any(tmp_path.glob("*/*.sock")):  # until a child is at work
            assert time.monotonic() < deadline
        assert server.stop(number) == 0, server.log()
        assert "Traceback" not in server.log()
        assert "ready" not in server.output
        assert list(tmp_path.iterdir()) == []


def test_nothing_listens_on_the_network_but_the_http_port(tmp_path: Path) -> None:
    with Server(*SCRIPTED, directory=tmp_path) as server:
        url = server.wait_ready()
        sockets = {
            os.readlink(descriptor)
            for pid in (server.process.pid, *pids_of(url).values())
            for descriptor in Path(f"/proc/{pid}/fd").iterdir()
            if descriptor.is_symlink()
        }
        listening = set()
        for table in ("tcp", "tcp6", "udp", "udp6"):
            for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                if f"socket:[{fields[9]}]" in sockets and (fields[3] == "0A" or table.startswith("udp")):  # 0A: LISTEN
                    listening.add((table, int(fields[1].rpartition(":")[2], 16)))
        assert listening == {("tcp", httpx.URL(url).port)}
        assert server.stop() == 0


EMBEDDING = """
import subprocess, sys
from millstream.config import ServerConfig
from millstream.launch.supervisor import Supervisor
own = subprocess.Popen(["sleep", "600"])
config = ServerConfig(executor="scripted", served_model_name=("m",), port=0)
Supervisor(config, lambda url, engine: print(url, flush=True)).run()
print("alive" if own.poll() is None else "dead", flush=True)
own.kill()
"""


def test_a_program_that_holds_a_server_keeps_its_own_children() -> None:
    with subprocess.Popen([sys.executable, "-c", EMBEDDING], stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        url = program.stdout.readline().strip()
        pids = pids_of(url)
        program.terminate()
        assert program.stdout.read() == "alive\n"
    assert not any(map(alive, pids.values()))
