"""The package's order: imports point downward, every module is reached, explained and short."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import dovetail
from dovetail.cli import COMMANDS
from dovetail.spark.session import DAEMON

SRC = Path(__file__).parents[2] / "src"
PACKAGE = SRC / "dovetail"
TESTS = Path(__file__).parents[1]
LINES_MAX = 450
"""Of a module, without its docstrings."""

FILES = sorted(SRC.rglob("*.py"))
PLUGIN = "_dovetail_pytest"
"""The module that pytest imports, beside the package."""
STRATEGIES = "dovetail.testing.strategies"
"""A module that users import by its name, because it needs Hypothesis."""
ARRAYS = {"errors", "base", "arrays"}
LAWS = {*ARRAYS, "aggregates", "laws"}
PLANS = {*LAWS, "platform", "lookup_sources", "plan", "physical"}
BUCKETS = {*PLANS, "state", "operators", "engine"}
TOPICS = {"errors", "windows", "formats", "lookups", "checkpoints", "metrics", "typing"}
"""The public modules beside the top one."""
LAYERS = {
    "errors": set(),
    "base": {"errors"},
    "platform": {"errors", "base"},
    "arrays": {"errors"},
    "aggregates": {"errors", "arrays"},
    "laws": {"arrays", "aggregates"},
    "state": ARRAYS,
    "iceberg": ARRAYS,
    "lookup_sources": {*ARRAYS, "laws", "iceberg"},
    "plan": {*LAWS, "platform", "lookup_sources"},
    "physical": {*LAWS, "lookup_sources", "plan"},
    "pictures": {"errors", "base", "plan", "physical"},
    "operators": {*LAWS, "lookup_sources", "plan", "physical", "state"},
    "engine": {*LAWS, "plan", "physical", "state", "operators"},
    "provenance": {*ARRAYS, "laws", "plan", "physical", "state", "engine"},
    "spark": {*BUCKETS, "pictures", "provenance"},
    "io": {*LAWS, "platform", "iceberg", "lookup_sources", "plan"},
    "snapshots": {"errors", "base", "laws", "platform", "iceberg", "plan", "io"},
    "api": {*PLANS, "pictures", "iceberg", "io", "spark"},
    "testing": {*BUCKETS, "provenance", "spark", "api"},
    "command": {
        "errors",
        "base",
        "plan",
        "physical",
        "engine",
        "spark",
        "api",
        "page",
        "provenance",
    },
    "cli": {"errors", "command"},
    PLUGIN: {"testing"},
    "windows": {"plan"},
    "formats": {"io"},
    "lookups": {"lookup_sources", "plan"},
    "checkpoints": {"spark", "api"},
    "metrics": {"spark"},
    "page": {"errors", "base", "plan", "physical", "pictures", "provenance", "spark"},
    "typing": {"plan", "provenance", "spark", "io", "snapshots", "api", "page"},
    "__init__": {"base", "io", "plan", "spark", "snapshots", "api", "page", *TOPICS},
}
MODULES_MAX = 14
"""Of a folder."""
BESIDE = {"connect", "fuzz", "kafka_streams", "project", "spec", "support", "typed"}
"""Folders of tests that mirror none of the package."""
MIRRORING = sorted(
    path for path in TESTS.rglob("test_*.py") if path.relative_to(TESTS).parts[0] not in BESIDE
)
WITHOUT_SPARK = {
    "errors",
    "base",
    "arrays",
    "aggregates",
    "laws",
    "iceberg",
    "lookup_sources",
    "state",
    "operators",
    "engine",
}
JVM = "dovetail.platform.jvm"
OF_JVM = re.compile(r"_j(?!oin)\w+|_gateway|_sc")
"""Private names by which Spark's Python classes reach the JVM."""


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__")


MODULES = {name_of(path): ast.parse(path.read_text("utf-8")) for path in FILES}


def imported(module: str) -> Iterator[str]:
    """Every name that a module imports, in functions and under ``TYPE_CHECKING`` too."""
    for node in ast.walk(MODULES[module]):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} imports relatively"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def own_imports(module: str) -> set[str]:
    """The modules of the package that a module imports."""
    names = {name for name in imported(module) if name.split(".")[0] == "dovetail"}
    return {name if name in MODULES else name.rpartition(".")[0] for name in names}


def attribute_names(module: str) -> Iterator[str]:
    """The names of attributes, and texts, with which ``getattr`` finds them."""
    for node in ast.walk(MODULES[module]):
        if isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def layer(module: str) -> str:
    return module.split(".")[1] if "." in module else "__init__" if module == "dovetail" else module


@pytest.mark.parametrize("module", MODULES)
def test_imports_point_downward(module: str) -> None:
    allowed = LAYERS[layer(module)] | {layer(module)}
    above = [name for name in own_imports(module) if layer(name) not in allowed]
    assert not above, f"{module} imports {', '.join(above)}"


def test_no_cycles_within_a_layer() -> None:
    waiting = {module: own_imports(module) - {module} for module in MODULES}
    while free := [module for module, needs in waiting.items() if not needs]:
        waiting = {m: needs.difference(free) for m, needs in waiting.items() if m not in free}
    assert not waiting


@pytest.mark.parametrize("module", [m for m in MODULES if layer(m) in WITHOUT_SPARK])
def test_the_lower_layers_know_nothing_of_spark(module: str) -> None:
    assert not [name for name in imported(module) if name.split(".")[0] == "pyspark"]


@pytest.mark.parametrize("module", sorted({*MODULES} - {JVM}))
def test_one_module_reaches_into_the_jvm(module: str) -> None:
    assert not {*map(OF_JVM.fullmatch, attribute_names(module))} - {None}


@pytest.mark.parametrize("folder", sorted({path.parent for path in (*FILES, *MIRRORING)}), ids=str)
def test_a_folder_is_read_at_a_glance(folder: Path) -> None:
    assert len([path for path in folder.glob("*.py") if path.stem != "__init__"]) <= MODULES_MAX


def test_folders_of_tests_are_those_of_the_package() -> None:
    assert [path.name for path in TESTS.glob("*.py")] == ["conftest.py"]
    folders = {path.parent.relative_to(TESTS) for path in MIRRORING}
    assert folders <= {path.parent.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py")}


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_module_is_explained_and_short(path: Path) -> None:
    module = MODULES[name_of(path)]
    assert ast.get_docstring(module)
    explained = sum(
        (node.end_lineno or node.lineno) - node.lineno + 1
        for node in ast.walk(module)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    )
    assert len(path.read_text("utf-8").splitlines()) - explained <= LINES_MAX


def test_names_are_imported_on_first_use_from_where_type_checkers_find_them() -> None:
    found = {
        alias.name: node.module
        for node in ast.walk(MODULES["dovetail"])
        if isinstance(node, ast.ImportFrom)
        if node.module != "dovetail.base.hints" and str(node.module).split(".")[0] == "dovetail"
        for alias in node.names
    }
    topics = dict.fromkeys(dovetail._TOPICS, "dovetail")
    modules = {name: f"dovetail.{module}" for name, module in dovetail._MODULE_OF.items()}
    assert found == modules | topics
    assert {*found, "testing"} == {*dovetail.__all__}
    for name in dovetail.__all__:
        assert getattr(dovetail, name) is not None


def test_every_file_is_reached_from_what_users_import() -> None:
    reached, waiting = set(), {"dovetail", "dovetail.cli", PLUGIN, STRATEGIES, DAEMON}
    waiting |= {f"dovetail.command.{module}" for module in COMMANDS.values()}
    while waiting:
        reached |= waiting
        waiting = set().union(*map(own_imports, waiting)) - reached
    packages = (
        module.split(".")[:n] for module in reached for n in range(1, module.count(".") + 1)
    )
    reached |= {".".join(parts) for parts in packages}
    assert set(MODULES) == reached
    assert {path.suffix for path in SRC.rglob("*") if path.is_file()} - {".pyc"} <= {
        ".py",
        ".typed",
        ".html",
        ".css",
        ".js",
        ".java",
        ".jar",
    }
