"""The Dockerfile's own steps in a clean folder, since a machine that tests may have no Docker engine."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
DOCKERFILE = ROOT / "docker" / "Dockerfile"
TOOLS = ("pytest", "mypy", "ruff", "build", "setuptools", "pip")  # that no image for production has
SYSTEM = ("useradd",)  # what changes the machine, and is left to Docker
PATHS = ("/src", "/opt/build", "/opt/trellis", "/var/lib/trellis")  # of the image; each stands in the clean folder here

pytestmark = pytest.mark.timeout(600)


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile as (instruction, arguments), continuation lines joined."""
    text = re.sub(r"^\s*#.*\n", "", DOCKERFILE.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in lines)]


def within(folder: Path, text: str) -> str:
    """*text* with the image's paths moved into *folder*."""
    for path in PATHS:
        text = re.sub(rf"(?<![\w.]){re.escape(path)}(?![\w-])", f"{folder}{path}", text)
    return text


def build(folder: Path) -> dict[str, Any]:
    """Do what the Dockerfile says; the environment, the folder and the command that the image ends with."""
    image: dict[str, Any] = {"env": {}, "cwd": folder}
    for word, rest in instructions():
        if word == "WORKDIR":
            image["cwd"] = Path(within(folder, rest))
            image["cwd"].mkdir(parents=True, exist_ok=True)
        elif word == "COPY" and not rest.startswith("--from"):
            *sources, target = shlex.split(rest)
            for source in sources:
                copy(ROOT / source, image["cwd"] / target, into=len(sources) > 1)
        elif word == "RUN" and not rest.startswith(SYSTEM):
            command = within(folder, rest).replace("python -m venv", f"{sys.executable} -m venv")
            subprocess.run(command, shell=True, check=True, cwd=image["cwd"], stdout=subprocess.DEVNULL)
        elif word == "ENV":
            image["env"] |= dict(pair.split("=", 1) for pair in shlex.split(within(folder, rest)))
        elif word in ("ENTRYPOINT", "CMD", "HEALTHCHECK"):
            image[word] = json.loads(rest[rest.index("[") :])
    return image


def copy(source: Path, target: Path, *, into: bool) -> None:
    """Copy a file or a folder as COPY does."""
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        target.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target / source.name if into else target)


def test_the_steps_of_the_image_make_a_gateway_that_runs(tmp_path: Path) -> None:
    image = build(tmp_path)
    env = {**os.environ, **image["env"], "TRELLIS_PORT": "0", "TRELLIS_SPROUT__PORT": "0"}
    env["PATH"] = image["env"]["PATH"].replace("$PATH", os.environ["PATH"])
    env.pop("PYTHONPATH", None)
    command = [*image["ENTRYPOINT"], *(part.replace("0.0.0.0", "127.0.0.1") for part in image["CMD"])]
    gateway = subprocess.Popen(command, env=env, cwd=image["cwd"], stdout=subprocess.PIPE, text=True)
    try:
        assert gateway.stdout is not None
        ready = json.loads(gateway.stdout.readline())
        with urllib.request.urlopen(f"http://{ready['http']}/readyz", timeout=5) as response:
            assert response.status == 200
        assert (tmp_path / "var/lib/trellis/data/log").is_dir()
        asked = env | {"TRELLIS_PORT": ready["http"].rpartition(":")[2]}
        subprocess.run(image["HEALTHCHECK"], env=asked, cwd=image["cwd"], check=True, stdout=subprocess.DEVNULL)
    finally:
        gateway.terminate()
        assert gateway.wait(20) == 0
        assert gateway.stdout is not None
        gateway.stdout.close()
    installed = {path.name for path in (tmp_path / "opt/trellis").glob("lib/python*/site-packages/*")}
    assert "gateway" in installed
    assert installed & set(TOOLS) == set()


def test_the_image_runs_as_an_unprivileged_user_with_a_health_check() -> None:
    words = dict(instructions())
    assert words["USER"] == "999", "a number: Kubernetes cannot tell whether a name is root's"
    assert '"trellis", "healthcheck"' in words["HEALTHCHECK"], "which speaks TLS where the gateway does"


def test_the_compose_file_uses_existing_flags_and_ports() -> None:
    text = (ROOT / "docker" / "compose.yaml").read_text()
    command = json.loads(re.search(r"command: (\[.*\])", text)[1])  # type: ignore[index]
    from typer.testing import CliRunner

    from gateway.cli import app

    shown = CliRunner(env={"COLUMNS": "200"}).invoke(app, [command[0], "--help"]).output
    assert all(flag in shown for flag in command if flag.startswith("--"))
    gateway = text.partition("  prometheus:\n")[0]
    ports = re.findall(r'"127\.0\.0\.1:(\d+):(\d+)"', gateway)
    exposed = dict(instructions())["EXPOSE"].split()
    assert ports
    assert all(inside in exposed for _, inside in ports)


def test_compose_and_kubernetes_use_existing_pipeline_options(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from gateway.cli import app

    shown = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["pipeline", "--help"]).output
    texts = [(ROOT / "docker" / name).read_text() for name in ("compose.yaml", "spark-application.yaml")]
    commands = [json.loads(found) for text in texts for found in re.findall(r'\[.*"--warehouse".*\]', text)]
    assert len(commands) == 3
    for command in commands:
        assert "all" in command
        assert all(word in shown for word in command if word.startswith("--"))
    script = ROOT / "docker" / "spark-entrypoint.sh"
    done = subprocess.run(["sh", script, "echo", "a command"], capture_output=True, text=True, check=True)
    assert done.stdout == "a command\n"
    # What Spark starts an executor with arrives word by word, also where there are spaces.
    java = tmp_path / "bin/java"
    java.parent.mkdir()
    java.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    java.chmod(0o755)
    env = {"JAVA_HOME": str(tmp_path), "SPARK_HOME": "/s", "SPARK_JAVA_OPT_0": "-Da=b c", "SPARK_JAVA_OPT_1": "-Dd"}
    names = "EXECUTOR_MEMORY DRIVER_URL EXECUTOR_ID EXECUTOR_CORES APPLICATION_ID EXECUTOR_POD_IP RESOURCE_PROFILE_ID"
    env |= {f"SPARK_{name}": name for name in (*names.split(), "EXECUTOR_POD_NAME")}
    done = subprocess.run(["sh", script, "executor"], capture_output=True, text=True, check=True, env=os.environ | env)
    words = done.stdout.splitlines()
    assert words[:6] == ["-Da=b c", "-Dd", "-XmsEXECUTOR_MEMORY", "-XmxEXECUTOR_MEMORY", "-cp", "/s/jars/*"]
    assert words[7:11] == ["--driver-url", "DRIVER_URL", "--executor-id", "EXECUTOR_ID"]
