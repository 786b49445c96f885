"""Write the licences of all that an installation pulls in, as a table: docs/licences.md.

.venv/bin/python tools/licences.py > docs/licences.md
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution

from packaging.requirements import Requirement

HEAD = """\
# Licences

See the licences of all that `pip install` brings, with all extras. dovetail itself is under the
Apache License 2.0.

| package | licence | for |
|---|---|---|"""
CLASSIFIER = "License :: OSI Approved :: "
STATED = {"grandalf": "GPL-2.0-only OR EPL-1.0"}
"""Licences of which a package's classifiers name only one."""


def dependencies() -> dict[str, set[str]]:
    """All packages that the library needs, with the extras that each is for; none if for all."""
    found: dict[str, set[str]] = {}
    extras = distribution("dovetail").metadata.get_all("Provides-Extra") or []
    for extra in ["", *extras]:
        for name in _needed("dovetail", extra, set()):
            found.setdefault(name, set()).add(extra)
    return {name: set() if "" in extras else extras for name, extras in sorted(found.items())}


def _needed(package: str, extra: str, seen: set[str]) -> Iterator[str]:
    """What a package needs with an extra, and what that needs in turn, but for what is not here."""
    for text in distribution(package).requires or []:
        requirement = Requirement(text)
        name = requirement.name.lower().replace("_", "-")
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        wanted = f"{name}{sorted(requirement.extras)}"
        if wanted in seen:
            continue
        seen.add(wanted)
        try:
            distribution(name)
        except PackageNotFoundError:
            continue
        yield name
        for own in ["", *requirement.extras]:
            yield from _needed(name, own, seen)


def licence(package: str) -> str:
    """What a package says of its licence."""
    if package in STATED:
        return STATED[package]
    about = distribution(package).metadata
    if expression := about.get("License-Expression"):
        return expression
    classifiers = [one for one in about.get_all("Classifier") or [] if one.startswith(CLASSIFIER)]
    if classifiers:
        return ", ".join(one.removeprefix(CLASSIFIER) for one in classifiers)
    return (about.get("License") or "not stated").splitlines()[0]


def rows() -> list[str]:
    """The table's rows."""
    return [
        f"| {name} | {licence(name)} | {', '.join(sorted(extras))} |"
        for name, extras in dependencies().items()
    ]


if __name__ == "__main__":
    print("\n".join([HEAD, *rows()]))
