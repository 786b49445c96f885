"""The command that serves the page of a query from its checkpoint."""

from __future__ import annotations

import signal
from contextlib import nullcontext, suppress
from threading import Event
from typing import Annotated

import typer

from dovetail.api.topology import Planned
from dovetail.command.options import AsJson, Checkpoint
from dovetail.command.output import print_json
from dovetail.command.sessions import local_stores, session
from dovetail.command.topologies import load_topology
from dovetail.page.server import serve_checkpoint


def serve(
    checkpoint: Checkpoint,
    *,
    topology: Annotated[
        list[str] | None, typer.Option(help="Its results, each as module:name, for the picture.")
    ] = None,
    record: Annotated[
        str | None, typer.Option(help="A file of dt.metrics.record, for the figures.")
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 for any.")] = 4050,
    host: Annotated[str, typer.Option(help="The address to bind to.")] = "127.0.0.1",
    token: Annotated[
        str | None, typer.Option(help="A secret of each request; a random one on other hosts.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Serve the page of a query that runs elsewhere or has ended, until Ctrl-C.

    The address is printed first, with --json as an object of url. It has the token, if there is
    one: without --token, none on this machine's own addresses. Spark is started only for a
    topology, or if the checkpoint cannot be read from a local disk.
    """
    needs_spark = bool(topology) or local_stores("serve", checkpoint, None) is None
    with session() if needs_spark else nullcontext() as spark:
        results = [load_topology(name, Planned).plan for name in topology or ()]
        page = serve_checkpoint(
            checkpoint,
            results,
            record=record,
            session=spark,
            port=port,
            host=host,
            token=token,
        )
        if as_json:
            print_json({"url": page.url})
        else:
            print(f"{page.url}  (Ctrl-C ends it)", flush=True)
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        with suppress(KeyboardInterrupt):
            Event().wait()
        page.stop()
