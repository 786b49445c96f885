"""Arguments and options that several commands have."""

from __future__ import annotations

from typing import Annotated

import typer

Checkpoint = Annotated[str, typer.Argument(help="The checkpoint= of a query.")]
Batch = Annotated[int | None, typer.Option(help="The micro-batch after which; the last one.")]
AsJson = Annotated[bool, typer.Option("--json", help="JSON in place of text.")]
App = Annotated[str, typer.Argument(help="A Table or Stream in a module, as module:name.")]
