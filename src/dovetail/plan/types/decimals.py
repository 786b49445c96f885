"""Decimals of the bytes of an integer, as Spark expressions.

Java's ``BigInteger`` has such bytes, so Avro and Kafka Connect do: big-endian, in two's complement.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import DecimalType

DIGITS_MAX: Final = 38
"""The most digits of a decimal in Spark."""


def decimal_of(unscaled: Column, scale: Column, type_: DecimalType) -> Column:
    """Return the decimal ``unscaled`` / 10 ^ ``scale`` in ``type_``. ``unscaled``: an integer in
    bytes, big-endian in two's complement. ``scale``: an integer column, may be negative.

    It is null for null or no bytes, a null scale, more than 128 bits, and where the decimal does
    not fit the type. Digits beyond the type's scale are rounded half up.
    """
    digits = F.hex(unscaled)
    negative = F.substring(digits, 1, 1) >= "8"
    flipped = F.translate(digits, "0123456789ABCDEF", "FEDCBA9876543210")
    digits = F.when(negative, flipped).otherwise(digits)
    digits = F.ltrim(digits, F.lit("0"))
    padded = F.lpad(digits, 32, "0")
    magnitude = F.lit(0).cast("decimal(38,0)")
    for first in (1, 9, 17, 25):
        chunk = F.conv(F.substring(padded, first, 8), 16, 10).cast("decimal(10,0)")
        shifted = F.try_multiply(magnitude, F.lit(1 << 32).cast("decimal(10,0)"))
        magnitude = F.try_add(shifted, chunk).cast("decimal(38,0)")
    # As text, because Spark's minus rounds a decimal to 34 digits.
    below = F.concat(
        F.lit("-"), F.try_add(magnitude, F.lit(1)).cast("decimal(38,0)").cast("string")
    )
    text = F.when(negative, below).otherwise(magnitude.cast("string"))
    text = F.concat(text, F.lit("E"), (-scale).cast("string"))
    fits = (F.length(unscaled) > 0) & (F.length(digits) <= 32)
    return F.when(fits, text.try_cast(type_))


def decimal_text_of(unscaled: Column, scale: int) -> Column:
    """Return the decimal ``unscaled`` / 10 ^ ``scale`` as a text of plain digits, ``scale`` of them
    behind the point. A ``scale`` that is 0 or negative gives no point. ``unscaled``: an integer in
    bytes, as for ``decimal_of``.

    It is null for null or no bytes. It is also null if ``unscaled`` has more than 38 digits, or if
    a negative scale makes so many.
    """
    whole = decimal_of(unscaled, F.lit(min(scale, 0)), DecimalType(DIGITS_MAX, 0)).cast("string")
    if scale <= 0:
        return whole
    digits = F.ltrim(whole, F.lit("-"))
    padded = F.lpad(digits, F.greatest(F.length(digits), F.lit(scale + 1)), "0")
    sign = F.when(whole.startswith("-"), "-").otherwise("")
    return F.concat(sign, F.regexp_replace(padded, rf"(?=\d{{{scale}}}$)", "."))
