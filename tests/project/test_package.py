"""What is released: the wheel, the source distribution, and the licences of what they bring."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
from email.parser import Parser
from importlib.metadata import requires
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement

import dovetail
from tools import licences

ROOT = Path(__file__).parents[2]
MODULES = {str(file.relative_to(ROOT / "src")) for file in (ROOT / "src").rglob("*.py")}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return folder


def test_the_wheel_has_the_library_and_nothing_else(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    about = f"dovetail-{dovetail.__version__}.dist-info"
    with ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata = Parser().parsestr(archive.read(f"{about}/METADATA").decode())
        points = archive.read(f"{about}/entry_points.txt").decode()
    assert {name for name in names if not name.startswith(about)} == {
        *MODULES,
        "dovetail/page/page.html",
        "dovetail/page/script.js",
        "dovetail/page/style.css",
        "dovetail/platform/java/LocalDisk.java",
        "dovetail/platform/java/local_disk.jar",
        "dovetail/py.typed",
    }
    assert f"{about}/licenses/LICENSE" in names
    assert "dovetail = dovetail.cli:main" in points
    assert "[pytest11]\ndovetail = _dovetail_pytest" in points
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.10"
    assert metadata.get_payload() == (ROOT / "README.md").read_text()


def test_the_source_distribution_has_what_builds_and_tests_it(built: Path) -> None:
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as files:
        names = {name.split("/", 1)[1] for name in files.getnames()}
    wanted = {"pyproject.toml", "README.md", "LICENSE", "dev", "tests/conftest.py"}
    assert wanted <= names
    assert {f"src/{name}" for name in MODULES} <= names
    assert not [name for name in names if re.search(r"__pycache__|\.venv|spark-warehouse", name)]


def test_each_python_of_the_classifiers_is_tried() -> None:
    """``./dev versions`` looks for each of them. Hosted CI has the oldest and the newest."""
    classifiers = (ROOT / "pyproject.toml").read_text()
    minors = re.findall(r'"Programming Language :: Python :: 3\.(\d+)"', classifiers)
    (looked_for,) = re.findall(r"for minor in (.*); do", (ROOT / "dev").read_text())
    assert looked_for.split() == minors
    hosted = (ROOT / ".github/workflows/ci.yml").read_text()
    assert {minors[0], minors[-1]} <= set(re.findall(r"^ +3\.(\d+)$", hosted, re.MULTILINE))


def test_the_licences_of_all_dependencies_are_listed() -> None:
    listed = (ROOT / "docs" / "licences.md").read_text().splitlines()
    direct = {Requirement(text).name for text in requires("dovetail") or []}
    rows = {row.split(" | ")[0].removeprefix("| "): row for row in licences.rows()}
    assert direct <= rows.keys()
    assert [rows[name] for name in sorted(direct) if rows[name] not in listed] == []
