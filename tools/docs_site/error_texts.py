"""The errors that the library raises, read from its source."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

SRC = Path(__file__).parents[2] / "src"
TROUBLESHOOTING = Path(__file__).parents[2] / "docs" / "troubleshooting.md"
CLASSES = (
    *("PlanError", "ConfigurationError", "CheckpointError", "TakenOverError", "TargetError"),
    *("DataError", "StateError", "StorageError", "BatchError"),
)
GAP = "…"
"""What stands for a value in a text."""
TELLING = 12
"""The characters of an explained text without which it would fit many errors."""
OPENING = """\
Find an error by its text. It reads `operator: problem. remedy.`, and `…` stands for names and
values. [Troubleshooting](../troubleshooting.md) explains the ones that you meet most."""
LINK = re.compile(r"\]\((?=[^):]*\))")
"""The place in a link at which a path within ``docs/`` begins."""
EXPLAINED = re.compile(r"^\| `([^`]+)` \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)


@dataclass(frozen=True, order=True)
class Message:
    """An error: its class, and the two texts with ``…`` for values."""

    kind: str
    problem: str
    remedy: str


@cache
def messages() -> list[Message]:
    """Return each error of the library once, sorted by class and problem.

    A call that passes on the problem of another has no text of its own, and is left out.
    """
    trees = [ast.parse(path.read_text("utf-8")) for path in sorted(SRC.rglob("*.py"))]
    constants = {name: text for tree in trees for name, text in _assigned(tree.body)}
    listed = {message for tree in trees for message in _raised(tree, constants)}
    return sorted(message for message in listed if message.problem.strip(GAP + " ="))


def _raised(tree: ast.AST, names: Mapping[str, ast.expr]) -> Iterator[Message]:
    """Walk functions with the texts that their variables have."""
    for node in ast.iter_child_nodes(tree):
        local = names
        if isinstance(node, ast.FunctionDef):
            local = {**names, **dict(_assigned([*ast.walk(node)]))}
        if isinstance(node, ast.Call) and _called(node) in CLASSES and len(node.args) == 3:
            problem, remedy = (text_of(argument, local) for argument in node.args[1:])
            yield Message(_called(node), problem, remedy)
        yield from _raised(node, local)


def _called(node: ast.Call) -> str:
    return getattr(node.func, "attr", getattr(node.func, "id", ""))


def _assigned(nodes: list[ast.stmt] | list[ast.AST]) -> Iterator[tuple[str, ast.expr]]:
    for node in nodes:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            yield node.targets[0].id, node.value


def text_of(node: ast.expr, names: Mapping[str, ast.expr], depth: int = 0) -> str:
    """Return the text of an expression, with ``…`` for what a run decides."""
    if depth > 4:
        return GAP
    match node:
        case ast.Constant(value=str(value)):
            text = value
        case ast.JoinedStr(values=parts):
            text = "".join(text_of(part, {}, depth + 1) for part in parts)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            text = text_of(left, names, depth + 1) + text_of(right, names, depth + 1)
        case ast.IfExp(body=body):
            text = text_of(body, names, depth + 1)
        case ast.Name(id=name) if name in names:
            text = text_of(names[name], names, depth + 1)
        case _:
            text = GAP
    return re.sub(f"{GAP}(?: ?{GAP})+", GAP, " ".join(text.split(" ")))


@cache
def explained() -> list[tuple[list[str], str]]:
    """Return the texts that the troubleshooting page explains, in parts, with the reason."""
    tables = TROUBLESHOOTING.read_text("utf-8").partition("In the tables `…`")[2]
    return [
        ([part.strip() for part in text.split(GAP) if part.strip()], reason)
        for text, reason, _ in EXPLAINED.findall(tables)
    ]


def reason(message: Message) -> str:
    """Return the reason that the troubleshooting page gives, or nothing."""
    whole = f"{message.problem}. {message.remedy}"
    for parts, why in explained():
        if sum(map(len, parts)) >= TELLING and all(part in whole for part in parts):
            return LINK.sub("](../", why)
    return ""


def as_markdown() -> str:
    """Return the page of all errors."""
    parts = [
        "# All errors",
        OPENING,
    ]
    for kind in CLASSES:
        rows = [
            f"| {_code(message.problem)} | {_code(message.remedy)} | {reason(message)} |"
            for message in messages()
            if message.kind == kind
        ]
        parts += [f"## {kind}", f"Raised as [`dt.errors.{kind}`][dovetail.errors.{kind}]."]
        parts += (
            ["\n".join(["| problem | remedy | cause |", "|---|---|---|", *rows])] if rows else []
        )
    return "\n\n".join(parts) + "\n"


def _code(text: str) -> str:
    safe = " ".join(text.split()).replace("|", "\\|")
    return f"`` {safe} ``" if "`" in safe else f"`{safe}`"
