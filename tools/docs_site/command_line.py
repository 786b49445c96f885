"""The commands of ``dovetail``, read from the program."""

from __future__ import annotations

import typer.main

from dovetail.cli import COMMANDS, app, command_of


def as_markdown() -> str:
    """Return the page of all commands."""
    help_text = typer.main.get_command(app).help
    parts = ["# Command line", f"{help_text} `dovetail COMMAND --help` shows the same."]
    for name in COMMANDS:
        command = command_of(name)
        named = [p.name.upper() for p in command.params if p.param_type_name == "argument"]
        usage = " ".join(["dovetail", name, *named, "[OPTIONS]"])
        rows = [_row(parameter) for parameter in command.params]
        parts += [f"## {name}", command.help, f"```\n{usage}\n```"]
        parts += ["\n".join(["| parameter | default | says |", "|---|---|---|", *rows])]
    return "\n\n".join(parts) + "\n"


def _row(parameter: typer.core.TyperArgument | typer.core.TyperOption) -> str:
    names = ", ".join(f"`{name}`" for name in parameter.opts)
    if parameter.param_type_name == "argument":
        names = f"`{parameter.name.upper()}`"
    default = getattr(parameter.default, "value", parameter.default)
    shown = "required" if parameter.required else f"`{default}`" if default else ""
    return f"| {names} | {shown} | {(parameter.help or '').replace('|', '')} |"
