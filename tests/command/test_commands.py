"""The command line on golden checkpoints."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from golden_checkpoints import CHECKPOINTS, Copied
from pyspark.sql import SparkSession
from typer.testing import CliRunner

import dovetail as dt
from dovetail import cli
from dovetail.command import sessions, state
from dovetail.platform.files import files_of

pytest.importorskip("rocksdict")
TABLES = next(path for path in CHECKPOINTS if path.name == "tables")


TOPOLOGY = """
import dovetail as dt
from dovetail import testing
import pyarrow as pa

orders = testing.table("orders", key="id", schema={"id": pa.int64()})
whole = orders.materialize()
made = lambda: whole
nothing = 1
"""


@pytest.mark.long
def test_the_command_line(
    spark: SparkSession,
    golden: Copied,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    checkpoint = str(golden(next(path for path in CHECKPOINTS if path.name == "tables")))

    def run(*arguments: str) -> str:
        made = CliRunner().invoke(cli.app, arguments, catch_exceptions=False)
        assert made.exit_code == 0, made.output
        return made.output

    def failed(*arguments: str) -> str:
        """What a process would say, and its exit code."""
        monkeypatch.setattr("sys.argv", ["dovetail", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert ended.value.code == 1
        (line,) = capsys.readouterr().err.splitlines()
        return line

    listed = json.loads(run("inspect", checkpoint, "--json"))
    assert listed["batch"] == 8
    assert listed["offsets"][0] == '{"logOffset":8}'
    stores = dt.checkpoints.read_state(spark, checkpoint).collect()
    assert [one["store"] for one in listed["stores"]] == [row["store"] for row in stores]
    asked = ("state", checkpoint, "customers", "--column", "id", "--json")
    here = [run("inspect", checkpoint, "--json"), run(*asked), run(*asked, "--key", "1")]
    with monkeypatch.context() as patched:
        patched.setattr(sessions, "local_files", lambda _: None)
        by_spark = [run("inspect", checkpoint, "--json"), run(*asked), run(*asked, "--key", "1")]
    assert here == by_spark
    assert here[2] == '{"id": 1}\n'
    shown = run("inspect", checkpoint, "--batch", "4")
    assert shown.startswith('after micro-batch 4\nsource 1: {"logOffset":4}\n')
    assert "\x1b" not in shown
    assert "subscriptions" in shown
    lines = run("state", checkpoint, "orders", "--format", "json").splitlines()
    expected: dict[str, Any] = {row["id"]: row for row in map(json.loads, lines)}
    assert len(lines) == dt.checkpoints.read_state(spark, checkpoint, "orders").count()
    asked = run("state", checkpoint, "orders", "--key", "12", "--format", "json")
    assert json.loads(asked) == expected[12]
    shown = run("state", checkpoint, "orders", "--column", "id", "--limit", "2")
    assert len(shown.splitlines()) == 7
    assert "the first 2 rows" in shown
    run("state", checkpoint, "orders", "--format", "parquet", "--output", str(tmp_path / "out"))
    assert spark.read.parquet(str(tmp_path / "out")).count() == len(expected)
    assert "no key, which is id" in failed("state", checkpoint, "orders", "--key", "x")
    assert "holds no rows of 'none'" in failed("state", checkpoint, "none")
    assert "not a versioned table" in failed("state", checkpoint, "orders", "--as-of", "2026-01-01")
    assert "go together" in failed("state", checkpoint, "orders", "--format", "parquet")
    assert "has no dovetail.json" in failed("inspect", str(tmp_path))
    assert "has no dovetail.json" in failed("top", str(tmp_path))
    assert "nothing to show is given" in failed("top")
    gone_back = run("rewind", checkpoint, "--batch", "4")
    assert gone_back.startswith(f"{checkpoint} is as it was after micro-batch 4, at 2")
    assert run("inspect", checkpoint).startswith("after micro-batch 4\n")
    assert "Spark has kept 0 to 4" in failed("rewind", checkpoint, "--batch", "6")
    (tmp_path / "shop.py").write_text(TOPOLOGY)
    monkeypatch.chdir(tmp_path)
    assert run("explain", "shop:whole") == run("explain", "shop:made")
    assert "orders: last row per key" in run("explain", "shop:whole")
    assert run("explain", "shop:whole", "--format", "mermaid").startswith("flowchart TD\n")
    graph = json.loads(run("explain", "shop:whole", "--json"))
    assert [node["kind"] for node in graph["nodes"]] == ["input", "operator", "result"]
    assert "shop:nothing is no Table or Stream" in failed("explain", "shop:nothing")
    assert "cannot be found" in failed("explain", "shop:other")
    for name in (":orders", "./shop:orders"):
        assert failed("explain", name) == (
            f"dovetail: topology: {name} names no module. Give it as module:name, without a path."
        )
    assert CliRunner().invoke(cli.app, ["inspect"]).exit_code == 2


def test_files_that_go_while_they_are_read(golden: Copied, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint, read = golden(TABLES), state.local_rows

    def without_files(*arguments: Any, **options: Any) -> Any:
        for folder in checkpoint.glob("state/*"):
            shutil.rmtree(folder)
        return read(*arguments, **options)

    monkeypatch.setattr(state, "local_rows", without_files)
    made = CliRunner().invoke(cli.app, ["state", str(checkpoint), "orders"])
    assert isinstance(made.exception, dt.errors.CheckpointError)
    assert f"state: files of {checkpoint} went while they were read" in str(made.exception)


def bound_with(**entries: object) -> Callable[[Path], None]:
    def broken(checkpoint: Path) -> None:
        file = checkpoint / "dovetail.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | entries))

    return broken


def holding(content: bytes) -> Callable[[Path], None]:
    def broken(checkpoint: Path) -> None:
        (checkpoint / "dovetail.json").write_bytes(content)

    return broken


def begun(checkpoint: Path) -> None:
    (checkpoint / "offsets/9").write_text("v1")


def succeeded(checkpoint: Path) -> None:
    successor = checkpoint / "new"
    successor.mkdir()
    (successor / "dovetail.json").touch()
    bound_with(successor=f"file:{successor}")(checkpoint)


def without_state(checkpoint: Path) -> None:
    for file in checkpoint.glob("state/0/0/*.changelog"):
        file.unlink()


@pytest.mark.parametrize(
    ("broken", "lacks"),
    [
        (lambda _: None, {}),
        (bound_with(repartitioning=3), {"partitions": "a call of repartition was killed"}),
        (bound_with(at="file:/elsewhere"), {"place": "it was made at file:/elsewhere"}),
        (bound_with(beginning=["run"]), {"beginning": "its first micro-batch is not finished"}),
        (
            bound_with(follows={"from": "file:/old", "begins": []}),
            {"takeover": "it follows the query of file:/old, and has not taken over"},
        ),
        (succeeded, {"takeover": "the query of file:/.*/new has taken over from it"}),
        (bound_with(successor="file:/removed"), {}),
        (bound_with(version=99), {"state": r"has format 99, this version reads \d"}),
        (holding(b"{"), {"dovetail.json": "cannot be read", "state": "json cannot be read"}),
        (holding(b"[]"), {"dovetail.json": "cannot be read", "state": "json cannot be read"}),
        (holding(b"\xff"), {"dovetail.json": "cannot be read", "state": "json cannot be read"}),
        (begun, {"micro-batches": "9 is begun and not committed"}),
        (without_state, {"state": "UnreadableFile: no such file"}),
    ],
)
def test_the_doctor_of_a_checkpoint(
    golden: Copied, broken: Callable[[Path], None], lacks: dict[str, str]
) -> None:
    checkpoint = golden(TABLES)
    broken(checkpoint)
    made = CliRunner().invoke(cli.app, ["doctor", str(checkpoint), "--json"])
    assert made.exit_code == bool(lacks), made.output
    found = {one["what"]: one["lacks"] for one in json.loads(made.output) if one["lacks"]}
    assert found.keys() == lacks.keys()
    for what, problem in lacks.items():
        assert re.search(problem, found[what])
    shown = CliRunner().invoke(cli.app, ["doctor", str(checkpoint)])
    assert all(what in shown.output for what in ("dovetail.json", "place", *lacks))


@pytest.mark.parametrize("name", ["a b", "über", "50%25 #1"])
def test_the_doctor_of_a_checkpoint_that_was_not_moved(
    spark: SparkSession, golden: Copied, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    copied = golden(TABLES)
    checkpoint = copied.rename(copied.parent / name)
    bound_with(at=files_of(spark).qualified(str(checkpoint)))(checkpoint)
    (checkpoint.parent / "here").mkdir()
    monkeypatch.chdir(checkpoint.parent / "here")
    for written in (str(checkpoint), f"file:{checkpoint}/", f"../{name}"):
        made = CliRunner().invoke(cli.app, ["doctor", written, "--json"])
        found = {one["what"]: one["lacks"] for one in json.loads(made.output)}
        assert found["place"] is None


def test_the_doctor_of_a_session(spark: SparkSession) -> None:
    made = CliRunner().invoke(cli.app, ["doctor", "--json"])
    found = {one["what"]: one["lacks"] for one in json.loads(made.output)}
    assert found["workers' Python"] is None
    assert made.exit_code == any(found.values())


def test_top_of_a_checkpoint(golden: Copied) -> None:
    checkpoint = golden(TABLES)
    shown = CliRunner().invoke(cli.app, ["top", str(checkpoint)], env={"COLUMNS": "160"})
    first, header, *lines = shown.output.splitlines()
    assert re.match(r"tables  micro-batch 8, committed \d+ \w+ ago", first)
    assert header.split() == ["store", "table", "rows", "MB", "segments", "stream", "time"]
    assert lines[1].split()[:3] == ["2.", "subscriptions", "orders"]
    view = json.loads(CliRunner().invoke(cli.app, ["top", str(checkpoint), "--json"]).output)
    assert (view["name"], view["batch"], view["progress"]) == ("tables", 8, None)
    assert [store["rows"] for store in view["stores"]][:3] == [13, 14, 3]


def test_the_page_of_a_checkpoint_is_served_until_a_signal(golden: Copied) -> None:
    command = [sys.executable, "-c", "from dovetail.cli import main; main()"]
    command += ["serve", str(golden(TABLES)), "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = json.loads(process.stdout.readline())["url"]
        with urllib.request.urlopen(f"{url}rows?table=customers&key=1") as answer:
            found: dict[str, Any] = json.load(answer)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    assert found["header"] == ["time", "id", "city"]
    assert found["batch"] == 8


@pytest.mark.parametrize("arguments", [["inspect"], ["state", "orders", "--key", "12"]])
def test_files_are_read_without_spark(golden: Copied, arguments: list[str]) -> None:
    """Its import alone takes longer than to read a checkpoint."""
    heavy = "{'pyspark', 'pandas', 'pyarrow.acero', 'dovetail.api.tables'}"
    script = "import atexit, sys\nfrom dovetail.cli import main\n"
    script += f"atexit.register(lambda: print({heavy} & {{*sys.modules}}))\nmain()"
    name, *others = arguments
    command = [sys.executable, "-c", script, name, str(golden(TABLES)), *others]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert shown.splitlines()[-1] == "set()"
    assert len(shown.splitlines()) > 1
