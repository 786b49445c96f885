"""Topologies that users name on the command line, and the command that explains one."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict
from enum import Enum
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from dovetail.api.topology import Planned
from dovetail.command.options import App, AsJson
from dovetail.command.output import print_json
from dovetail.command.sessions import session
from dovetail.errors import ConfigurationError, line_of
from dovetail.physical.topology_graph import topology_graph

P = TypeVar("P", bound=Planned)


class Explained(str, Enum):
    """The form in which the command ``explain`` describes a topology."""

    text = "text"
    mermaid = "mermaid"
    svg = "svg"
    html = "html"


def explain(
    topology: App,
    *,
    format: Annotated[  # noqa: A002
        Explained, typer.Option(help="Text, or a picture to redirect to a file.")
    ] = Explained.text,
    reasons: Annotated[
        bool, typer.Option("--reasons", help="Say why each stage shuffles and stores rows.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print a topology, its stages, their shuffles and their state.

    Its module is imported in a Spark session, and no query runs. --json prints an object of nodes,
    edges and stages, also if --format is given.
    """
    with session():
        planned = load_topology(topology, Planned)
        if as_json:
            graph = asdict(topology_graph(planned.plan))
            print_json({name: graph[name] for name in ("nodes", "edges", "stages")})
        elif format is Explained.text:
            planned.explain(reasons=reasons)
        else:
            print(planned.explain(format=format.value))


def load_topology(name: str, kind: type[P]) -> P:
    """Return the topology that ``name`` names as ``module:name``, or that the function of that name
    returns when called. The module is imported; the working directory is put before the paths of
    modules for good. ``kind``: the class that the topology must have.

    Raises ``ConfigurationError`` if there is none, if the function needs an argument, or if the
    result is not of ``kind``. Other errors of the module or the function pass.
    """
    module, colon, attribute = name.partition(":")
    if not module or module.startswith("."):
        raise ConfigurationError(
            "topology", f"{name} names no module", "Give it as module:name, without a path"
        )
    sys.path.insert(0, str(Path.cwd()))
    try:
        target: Any = getattr(import_module(module), attribute) if colon else None
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(
            "topology", f"{name} cannot be found, {line_of(error)}", "Give it as module:name"
        ) from error
    if callable(target) and not isinstance(target, kind):
        _refuse_arguments(name, target)
        target = target()
    if not isinstance(target, kind):
        raise ConfigurationError(
            "topology", f"{name} is no Table or Stream", "Give one as module:name"
        )
    return target


def _refuse_arguments(name: str, function: Callable[..., Any]) -> None:
    """Raise ``ConfigurationError`` for a function that cannot be called without arguments, naming
    them. ``name``: the function's name in the error.
    """
    needed = [
        parameter.name
        for parameter in signature(function).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    if needed:
        raise ConfigurationError(
            "topology",
            f"the function {name} takes an argument, {', '.join(needed)}",
            "Name a function without arguments, which calls it",
        )
