"""The systemd unit and its configuration file: what they name exists, and a drain may end."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from millstream.cli.config_file import read_config_file
from millstream.config import ServerConfig
from millstream.launch.supervisor import STOP_GRACE_S

FOLDER = Path(__file__).parent.parent.parent / "deploy" / "systemd"
UNIT = FOLDER / "millstream.service"
DEFAULTS = ServerConfig()


def settings() -> dict[str, dict[str, list[str]]]:
    """Every value of every setting, by section."""
    found: dict[str, dict[str, list[str]]] = {}
    section: dict[str, list[str]] = {}
    for line in UNIT.read_text().splitlines():
        if line.startswith("["):
            section = found.setdefault(line.strip("[]"), {})
        elif line and not line.startswith("#"):
            name, _, value = line.partition("=")
            section.setdefault(name, []).append(value)
    return found


def test_the_unit_serves_the_file_beside_it_and_may_drain() -> None:
    service = settings()["Service"]
    program, *arguments = service["ExecStart"][0].split()
    assert program.endswith("/bin/millstream")
    assert arguments == ["serve", "--config", "/etc/millstream/server.yaml"]
    options = {name: given.value for name, given in read_config_file(str(FOLDER / "server.yaml")).items()}
    ServerConfig(**options).check()
    assert float(service["TimeoutStopSec"][0]) > options["drain_timeout_s"] + STOP_GRACE_S
    assert int(service["LimitNOFILE"][0]) > DEFAULTS.max_connections
    assert service["KillSignal"] == ["SIGTERM"]
    (cache,) = service["Environment"]
    assert cache == f"MILLSTREAM_CACHE_DIR=/var/cache/{service['CacheDirectory'][0]}"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_systemd_can_read_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/opt/millstream/bin/millstream", "/bin/true"))
    found = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, timeout=110, check=False)
    assert UNIT.name not in found.stderr, found.stderr
