"""Options of Spark's ``to_json`` for texts from which every value can be read back."""

from __future__ import annotations

from typing import Final

EXACT_TIMES: Final = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "timeZone": "UTC",
}
"""Times with all their digits, of which Spark's defaults write three. In UTC, because the offsets
of the 19th century have seconds, which Spark's defaults leave out."""
ALL_VALUES: Final = {"ignoreNullFields": "false", **EXACT_TIMES}
"""The same, and null fields are written as null."""
