"""Errors of other libraries in one line, for messages and pages."""

from __future__ import annotations


def first_line(error: object) -> str:
    r"""Return the first line of an error's message that is not blank, or the name of its type if
    there is none.

    >>> first_line(ValueError("no such file\n  at java.io"))
    'no such file'
    >>> first_line(ValueError())
    'ValueError'
    """
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
