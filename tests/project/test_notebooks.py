"""Notebooks: errors that show the user's line, and the example, which runs."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent, indent
from typing import Any

import nbformat
import pytest
from IPython.core.interactiveshell import InteractiveShell
from nbclient import NotebookClient

import dovetail

NOTEBOOK = Path(__file__).parents[2] / "examples" / "notebook.ipynb"
CALL = """\
import pyarrow as pa
from dovetail import testing
orders = testing.table("orders", key="id", schema={"id": pa.int64()})
orders.select(
    "amuont")
"""
MESSAGE = (
    "PlanError: select of orders: one of columns names an unknown column 'amuont'. Known are id."
)
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


@pytest.fixture
def shell() -> Iterator[InteractiveShell]:
    shell = InteractiveShell.instance()
    yield shell
    shell.run_line_magic("xmode", "Context")
    InteractiveShell.clear_instance()


def shown(shell: InteractiveShell, capsys: pytest.CaptureFixture[str], cell: str) -> list[str]:
    capsys.readouterr()
    shell.run_cell(cell, store_history=True)
    return _COLOURS.sub("", capsys.readouterr().out).splitlines()


def test_the_message_and_the_users_line_are_enough(
    shell: InteractiveShell, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = shown(shell, capsys, CALL)
    assert lines == [
        MESSAGE,
        f"Cell In[{shell.execution_count - 1}], line 4",
        "----> orders.select(",
        "%tb shows the whole traceback.",
    ]


def test_the_whole_traceback_is_a_call_away(
    shell: InteractiveShell, capsys: pytest.CaptureFixture[str]
) -> None:
    shown(shell, capsys, CALL)
    lines = shown(shell, capsys, "%tb")
    assert "Traceback (most recent call last)" in lines[1]
    assert any("dovetail/plan/views.py" in line for line in lines)
    assert lines[-1] == MESSAGE
    shell.run_line_magic("xmode", "Verbose")
    assert any("dovetail/plan/views.py" in line for line in shown(shell, capsys, CALL))


def test_a_line_of_a_module_is_named_by_its_file(
    shell: InteractiveShell,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = "def made():\n" + indent(CALL, "    ")
    (tmp_path / "own_topology.py").write_text(made)
    monkeypatch.syspath_prepend(tmp_path)
    lines = shown(shell, capsys, "import own_topology\nown_topology.made()")
    assert lines[1] == f"File {tmp_path}/own_topology.py, line 5"
    assert lines[2] == "----> orders.select("


def test_a_module_beside_the_library_is_not_of_the_library(
    shell: InteractiveShell, capsys: pytest.CaptureFixture[str]
) -> None:
    file = f"{Path(dovetail.__file__).parent}_jobs/shop.py"
    lines = shown(shell, capsys, f"exec(compile({CALL!r}, {file!r}, 'exec'))")
    assert lines[1] == f"File {file}, line 4"


def test_a_cause_is_named(shell: InteractiveShell, capsys: pytest.CaptureFixture[str]) -> None:
    cell = """
    from dovetail.errors import BatchError
    try:
        1 / 0
    except ZeroDivisionError as error:
        raise BatchError("orders", "a batch fails", "See the cause") from error
    """
    assert shown(shell, capsys, dedent(cell)) == [
        "BatchError: orders: a batch fails. See the cause.",
        "caused by ZeroDivisionError: division by zero",
        "%tb shows the whole traceback.",
    ]


def test_outside_of_ipython_it_is_pythons_own() -> None:
    from dovetail.errors import PlanError

    try:
        raise PlanError("a", "b", "c")
    except PlanError as error:
        lines: Any = error._render_traceback_()
    assert lines[0].startswith("Traceback")
    assert lines[-1] == "dovetail.errors.PlanError: a: b. c.\n"


def test_the_notebook_has_no_outputs() -> None:
    cells = nbformat.read(NOTEBOOK, as_version=4).cells
    assert [cell.id for cell in cells if cell.get("outputs")] == []


@pytest.mark.slow
def test_the_notebook_runs_and_shows_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": tmp_path}}).execute()
    outputs = {cell.id: cell.outputs for cell in notebook.cells if cell.cell_type == "code"}
    html = {
        id_: output["data"]["text/html"]
        for id_, cell_outputs in outputs.items()
        for output in cell_outputs
        if "text/html" in output.get("data", {})
    }
    assert "<td>customer</td><td>string</td>" in html["table"]
    assert "<svg " in html["table"]
    assert "<td>bob</td><td>15</td><td></td>" in html["preview"]
    assert any("image/svg+xml" in output["data"] for output in outputs["picture"])
    (error,) = [output for output in outputs["mistake"] if output.output_type == "error"]
    assert len(error.traceback) < 6
    assert any('located.where("amuont > 10")' in line for line in error.traceback)
    assert "left join of orders and customers; running" in html["query"]
    assert outputs["progress"]
    assert "<td>Oslo</td><td>upsert</td>" in html["changes"]
