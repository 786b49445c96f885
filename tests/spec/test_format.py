"""How truth tables are written: what is read, and that mistakes are found."""

from __future__ import annotations

import pytest
from bench import truth_tables
from bench.models.streams import StreamStream
from bench.records import Result

HEADERS = {
    "table_table": "# join j = L inner R",
    "stream_stream": "# join j = L inner R, before 1 after 1",
    "foreign_key": "# join j = L inner R",
    "windowed": "# windows L = tumbling 10\n# join j = L",
}


@pytest.mark.parametrize(
    ("folder", "line", "message"),
    [
        ("table_table", "1 L k 1", "not enough values"),
        ("table_table", "1 X k 1 A | j -", "no join reads X"),
        ("table_table", "1 L k 1 A | i -", "results for"),
        ("table_table", "1 L k one A | j -", "invalid literal"),
        ("table_table", "1 L k 1 A | j A", "invalid literal|1 values"),
        ("table_table", "1 L k 1 A | j A@1", "1 values"),
        ("table_table", "1 L k 1 A | j k k A+a@1", "too many values"),
        ("table_table", "=== | j -\n1 L k 1 A | j -", "a line after the end"),
        ("table_table", "=== | j A+a@1", "no key before"),
        ("table_table", "---", "results for"),
        ("table_table", "--- | j -", "results for"),
        ("table_table", "| j -", "not enough values"),
        ("table_table", "# join i = L inner R", "twice the same"),
        ("table_table", "# join j = L left R", "twice the same"),
        ("table_table", "# join i = L right R", "unknown join right"),
        ("table_table", "# join i = (L left R", "unbalanced parentheses"),
        ("table_table", "# join i = L left R)", "unexpected"),
        ("table_table", "# join i = L left R, emit never", "unexpected"),
        ("table_table", "# join i = L left R, emit batch late", "unexpected"),
        ("stream_stream", "1 R k 1 a | j A@1", "1 values"),
        ("stream_stream", "1 X k 1 A | j -", "no join reads X"),
        ("stream_stream", "# join i = L right R, before 1 after 1", "not a join"),
        ("stream_stream", "# join i = L inner R, before 1", "not a join"),
        ("stream_stream", "# join i = L inner R, versioned 1", "not a join"),
        ("foreign_key", "1 L k 1 A | j -", "not enough values"),
        ("foreign_key", "1 R x 1 a | j k k A+a@1", "too many values"),
        ("foreign_key", "# join i = R right L", "not a join"),
        ("foreign_key", "# join i = L right R, late 5", "not a join"),
        ("windowed", "1 S k 1 A | j -", "no join reads S"),
        ("windowed", "# join i = S left L\n1 S k 1 A | j - | i -", "not enough values"),
        ("windowed", "1 L k 1 A | j A@1", "no window before"),
        ("windowed", "1 L k 1 A | j 0..10 A@1", "no window before"),
        ("windowed", "1 L k 1 A | j a b 0-10 A@1", "too many values"),
        ("windowed", "=== | j 0-10 A@1", "no key before"),
        ("windowed", "# join i = L middle T", "unknown join"),
        ("windowed", "# join i = L left X", "no input X"),
        ("windowed", "# join i = L, late", "unknown option"),
        ("windowed", "# windows R = tumbling 10 wait 5\n# join i = R", "not windows"),
    ],
)
def test_a_malformed_line_is_found(folder: str, line: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        truth_tables.parse(f"{folder}/x", f"# source: none\n{HEADERS[folder]}\n{line}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 R x 1 a | j -", "results for"),
        ("1 R x 1 a\n---", "results for"),
        ("1 R x 1 a\n--- | j A+a@1", "no key before"),
        ("1 R x 1 a\n--- | j -\n=== | j -", "results for"),
        ("1 R x 1 a\n--- | j -\n===", "results for"),
        ("1 R x 1 a", "the last batch has no border"),
    ],
)
def test_a_malformed_batch_is_found(text: str, message: str) -> None:
    header = "# source: none\n# join j = L inner R, emit batch\n"
    with pytest.raises(ValueError, match=message):
        truth_tables.parse("foreign_key/x", header + text)


def test_results_are_read() -> None:
    text = "# join j = L left R, before -1 after 1 unmatched retract\n"
    text += "1 L '' 1 A | j -A+null@1, A+''@2, null null+b@0, k ∅@3\n=== | j z A+a@4\n"
    table = truth_tables.parse("stream_stream/x", text)
    column = table.columns["j"]
    assert column.join == StreamStream("left", -1, 1, unmatched="retract")
    assert column.emit == "change"
    assert column.results == [
        [
            Result("", ("A", None), 1, withdrawn=True),
            Result("", ("A", ""), 2),
            Result(None, (None, "b"), 0),
            Result("k", None, 3),
        ]
    ]
    assert column.at_end == [Result("z", ("A", "a"), 4)]


def test_modes_are_columns() -> None:
    """A border holds the net of the columns that emit by batch, and cuts the records of all; the
    end holds what the others add.
    """
    text = (
        "# windows L = tumbling 10\n# join j = L\n# join f = L, final\n# join n = L, emit batch\n"
    )
    text += "1 L k 1 A | j 0-10 A@1\n | f -\n2 L k 2 B | j 0-10 AB@2 | f -\n--- | n k 0-10 AB@2\n"
    text += "3 L k 11 C | j 10-20 C@11\n | f k 0-10 AB@2\n---\n | n k 10-20 C@11\n"
    text += "=== | j - | f k 10-20 C@11\n"
    table = truth_tables.parse("windowed/x", text)
    each, last, net = table.columns.values()
    assert [len(batch) for batch in table.batches] == [2, 1]
    assert [column.emit for column in (each, last, net)] == ["change", "change", "batch"]
    assert [len(results) for results in each.results] == [1, 1, 1]
    assert [len(results) for results in last.results] == [0, 0, 1]
    assert net.results == [[each.results[1][0]], [each.results[2][0]]]
    assert (each.at_end, last.at_end, net.at_end) == ([], each.results[2], [])


def test_windows_are_read() -> None:
    text = "# windows L = tumbling 10\n# join j = L\n1 L k -5 A | j -10-0 A@-5\n"
    table = truth_tables.parse("windowed/x", text)
    assert table.columns["j"].results == [[Result(("k", -10, 0), ("A",), -5)]]
