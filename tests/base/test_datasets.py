"""Names of folders."""

from __future__ import annotations

from pathlib import Path

import pytest

from dovetail.base.datasets import Dataset, folder, normal_folder


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/data/a#1", ("file", "/data/a#1")),
        ("file:/data/a?b#1", ("file", "/data/a?b#1")),
        ("file:///data/50%25 #1", ("file", "/data/50%25 #1")),
        ("a#1?", ("file", f"{Path.cwd()}/a#1?")),
        ("10:30/a", ("file", f"{Path.cwd()}/10:30/a")),
        ("s3a://lake/orders#1?x/", ("s3a://lake", "orders#1?x")),
        ("S3A://lake", ("s3a://lake", "/")),
        ("hdfs:/orders", ("hdfs://", "orders")),
        ("abfss://box@shop.net/a/b", ("abfss://box@shop.net", "a/b")),
    ],
)
def test_the_dataset_of_a_folder(path: str, expected: tuple[str, str]) -> None:
    assert folder(path) == Dataset(*expected)


def test_folders_are_told_apart_by_any_character() -> None:
    paths = ["file:///data/a#1", "file:///data/a#2", "/data/a?1", "s3a://b/a#1", "s3a://b/a?1"]
    assert len({normal_folder(path) for path in paths}) == len(paths)
    assert normal_folder("file:/data/./b/../a#1") == normal_folder("/data//a#1/")
