"""Dockerfile, compose file and Kubernetes manifests name only options, ports and routes that there are, and let a drain end."""

from __future__ import annotations

import re
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from millstream import __version__
from millstream.config import ServerConfig
from millstream.entry.http.routes import ROUTES
from millstream.launch.supervisor import STOP_GRACE_S

ROOT = Path(__file__).parent.parent.parent
DEFAULTS = ServerConfig()
OPTIONS = {option.name: option.type for option in fields(ServerConfig)}
OPEN = {route.path for route in ROUTES if route.access == "open" and route.method == "GET"}
LEAST_STOP_S = DEFAULTS.drain_timeout_s + STOP_GRACE_S
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def options_of(environment: dict[str, str]) -> dict[str, str]:
    """The options that variables set; each is one."""
    found = {
        name.removeprefix("MILLSTREAM_").lower(): value for name, value in environment.items() if name.startswith("MILLSTREAM_")
    }
    assert found.keys() <= OPTIONS.keys()
    return found


def instructions() -> list[tuple[str, str]]:
    """Those of the Dockerfile, each on one line."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [(line.split()[0], line.split(maxsplit=1)[1].strip()) for line in text.splitlines() if line.strip()]


def only(name: str) -> str:
    """The one instruction of that name in the last stage."""
    stage = instructions()
    last = max(index for index, (each, _) in enumerate(stage) if each == "FROM")
    (found,) = [value for each, value in stage[last:] if each == name]
    return found


def test_the_image_is_built_by_the_rules() -> None:
    for name, value in instructions():
        if name == "FROM":
            assert ":" in value, "a tag is pinned"
            assert ":latest" not in value
        if name == "RUN":
            assert "sudo" not in value
            assert ("apt-get install" in value) == ("rm -rf /var/lib/apt/lists/*" in value)
            assert "apt-get install" not in value or "--no-install-recommends" in value
            assert "pip install" not in value or "--no-cache-dir" in value
        if name in ("ENTRYPOINT", "CMD"):
            assert msgspec.json.decode(value, type=list[str])
        assert name != "ADD"
        if name == "COPY" and "--from" not in value:
            for source in value.split()[:-1]:
                assert (ROOT / source).exists(), source
                assert f"!{source.removeprefix('./')}\n" in (ROOT / ".dockerignore").read_text()


def test_the_image_has_what_the_project_has() -> None:
    text = (ROOT / "Dockerfile").read_text()
    (torch,) = [each for each in PROJECT["dependencies"] if each.startswith("torch==")]
    assert torch in text
    (model,) = re.findall(r"EMBEDDED_MODEL := (\S+)", (ROOT / "Makefile").read_text())
    assert model in text


def test_the_image_runs_as_nobody_in_particular_and_stops_by_draining() -> None:
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", only("USER"))
    assert only("STOPSIGNAL") == "SIGTERM"
    environment = dict(each.split("=", 1) for each in only("ENV").split())
    options = options_of(environment)
    assert only("EXPOSE") == options["port"] == str(DEFAULTS.port)
    assert options["host"] == "0.0.0.0"
    assert only("VOLUME") == options["cache_dir"]
    assert (only("ENTRYPOINT"), only("CMD")) == ('["millstream"]', '["serve"]')


def test_the_image_s_health_check_can_be_run_and_waits_for_a_start() -> None:
    flags, _, command = only("HEALTHCHECK").partition("CMD")
    program = msgspec.json.decode(command, type=list[str])
    compile(program[2], "healthcheck", "exec")
    assert "/health" in OPEN
    assert re.search(r"\}/health\"", program[2])
    (start,) = re.findall(r"--start-period=(\d+)s", flags)
    assert int(start) >= DEFAULTS.start_timeout_s


@pytest.mark.parametrize("name", ["cpu", "gpu"])
def test_a_service_of_the_compose_file_is_ours(name: str) -> None:
    compose = yaml.safe_load((ROOT / "compose.yaml").read_text())
    service = compose["services"][name]
    options_of(service["environment"])
    (port,) = service["ports"]
    assert port == f"127.0.0.1:{DEFAULTS.port}:{only('EXPOSE')}"
    assert int(service["stop_grace_period"].removesuffix("s")) > LEAST_STOP_S
    assert service["ulimits"]["nofile"] > DEFAULTS.max_connections
    assert service["read_only"]
    assert "/tmp" in service["tmpfs"]
    volumes = dict(each.split(":")[:2] for each in service["volumes"])
    assert only("VOLUME") in volumes.values()
    assert {each for each in volumes if not each.startswith(".")} == compose["volumes"].keys()
    arguments = service["build"]["args"] if isinstance(service["build"], dict) else {}
    assert arguments.keys() <= {value.partition("=")[0] for each, value in instructions() if each == "ARG"}


def manifest(name: str) -> dict[str, Any]:
    return yaml.safe_load((ROOT / "deploy" / "kubernetes" / f"{name}.yaml").read_text())


def container() -> dict[str, Any]:
    (found,) = manifest("deployment")["spec"]["template"]["spec"]["containers"]
    return found


def test_the_pod_s_options_and_ports_are_ours() -> None:
    options = options_of({each["name"]: each["value"] for each in container()["env"]})
    assert float(options["drain_timeout_s"]) == DEFAULTS.drain_timeout_s
    (port,) = container()["ports"]
    assert port["containerPort"] == DEFAULTS.port
    assert container()["image"] == f"millstream:{__version__}"
    assert container()["args"] == ["serve"]


def test_the_probes_ask_routes_that_need_no_key_and_give_a_start_its_time() -> None:
    startup, liveness, readiness = (container()[f"{name}Probe"] for name in ("startup", "liveness", "readiness"))
    assert [each["httpGet"]["path"] for each in (startup, liveness, readiness)] == ["/health", "/health", "/ready"]
    for probe in (startup, liveness, readiness):
        assert probe["httpGet"]["path"] in OPEN
        assert probe["httpGet"]["port"] == container()["ports"][0]["name"]
    assert startup["periodSeconds"] * startup["failureThreshold"] > DEFAULTS.start_timeout_s
    assert liveness["periodSeconds"] * liveness["failureThreshold"] > 2 * DEFAULTS.wedge_timeout_s


def test_the_pod_may_drain_before_it_is_killed() -> None:
    (seconds,) = [float(each) for each in container()["lifecycle"]["preStop"]["exec"]["command"][1:]]
    assert manifest("deployment")["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] > seconds + LEAST_STOP_S


def test_the_pod_runs_as_the_image_s_user_on_a_file_system_it_cannot_write() -> None:
    pod = manifest("deployment")["spec"]["template"]["spec"]
    user = f"{pod['securityContext']['runAsUser']}:{pod['securityContext']['runAsGroup']}"
    assert user == only("USER")
    assert container()["securityContext"]["readOnlyRootFilesystem"]
    mounts = {each["mountPath"]: each["name"] for each in container()["volumeMounts"]}
    assert mounts.keys() >= {"/tmp", only("VOLUME")}
    assert set(mounts.values()) == {each["name"] for each in pod["volumes"]}


def test_the_service_finds_the_pod() -> None:
    service, deployment = manifest("service")["spec"], manifest("deployment")["spec"]
    assert service["selector"] == deployment["selector"]["matchLabels"] == deployment["template"]["metadata"]["labels"]
    assert service["ports"][0]["targetPort"] == container()["ports"][0]["name"]
