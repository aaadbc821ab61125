"""The wheel and the sdist have the right files, and the wheel is all that a gateway needs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("gateway", "adapters", "pipeline")
BESIDE = ("pyproject.toml", "README.md", "LICENSE")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with both, built without a network: the sdist from a copy of the tree, the wheel from the sdist."""
    folder = tmp_path_factory.mktemp("build")
    for name in PACKAGES:
        shutil.copytree(ROOT / name, folder / "tree" / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in BESIDE:
        shutil.copy(ROOT / name, folder / "tree" / name)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder / "dist")]
    command.append(str(folder / "tree"))
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "dist"


def files() -> set[str]:
    """Every file of the packages, data included."""
    found = [path for name in PACKAGES for path in (ROOT / name).rglob("*") if path.is_file()]
    return {str(path.relative_to(ROOT)) for path in found if "__pycache__" not in path.parts} | documentation()


def documentation() -> set[str]:
    """Every page and picture; a link in the package leads to their folder, and the wheel has them themselves."""
    docs = ROOT / "docs"
    return {f"gateway/help/docs/{path.relative_to(docs)}" for path in docs.rglob("*") if path.is_file()}


def test_the_wheel_has_every_file_of_the_packages_and_no_other(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names == files()
    assert "gateway/py.typed" in names
    assert {"gateway/help/docs/README.md", "gateway/help/docs/performance/rest.svg"} <= names
    assert {"gateway/pages/index.html", "gateway/pages/console.js", "gateway/pages/console.css"} <= set(names)


def test_the_sdist_has_all_files_and_no_tests(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert files() | set(BESIDE) <= names
    assert not [name for name in names if name.startswith("tests/")]


def test_an_editable_installation_warns_of_nothing(built: Path, tmp_path: Path) -> None:
    """It is what `make env` makes; a warning in a box was the first thing that a newcomer saw."""
    make = "import sys; from setuptools import build_meta; build_meta.build_editable(sys.argv[1])"
    command = [sys.executable, "-W", "always", "-c", make, str(tmp_path)]
    done = subprocess.run(command, cwd=built.parent / "tree", capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    assert "*****" not in done.stdout + done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (path,) = (name for name in archive.namelist() if name.endswith(".pth"))
        assert archive.read(path).decode().strip() == str(built.parent / "tree")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif("TRELLIS_SOAK" not in os.environ, reason="takes a minute and the network; `make soak` runs it")
def test_the_wheel_alone_in_an_empty_environment_runs_the_demo(built: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    (wheel,) = built.glob("*.whl")
    quiet = ["--quiet", "--disable-pip-version-check"]
    lock = ["--no-deps", "--require-hashes", "-r", str(ROOT / "requirements-run.lock")]
    for wanted in (lock, ["--no-deps", str(wheel)]):
        subprocess.run([python, "-m", "pip", "install", *quiet, *wanted], check=True)
    subprocess.run([python, "-m", "pip", "check", "--disable-pip-version-check"], check=True)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [python.with_name("trellis"), "demo"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("16 of 16 broadcasts and 16 of 16 direct messages arrived.\n")
