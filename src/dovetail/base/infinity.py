"""PostgreSQL's ``infinity`` and ``-infinity`` of timestamps and dates, which Spark does not have.

| | timestamps, in UTC | dates |
|---|---|---|
| ``infinity`` | 9999-12-30 23:59:59.999999 | 9999-12-30 |
| ``-infinity`` | 0001-01-03 00:00:00 | 0001-01-03 |

Python has these in every time zone. They are not 9999-12-31 or 0001-01-01, which many tables have
as values of their own.
"""

from __future__ import annotations

from typing import Final

LAST_MICROSECOND: Final = 253402214399_999999
FIRST_MICROSECOND: Final = -62135424000_000000
LAST_DAY: Final = 2932895
FIRST_DAY: Final = -719160
"""The limits above, as microseconds and as days since 1970."""
INFINITE_TEXTS: Final = ("infinity", "-infinity")
"""PostgreSQL's texts for the two."""
