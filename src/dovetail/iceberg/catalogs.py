"""Iceberg tables in their catalogs, opened by the package pyiceberg."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Annotated, TypeAlias

from dovetail.base.packages import import_package
from dovetail.base.validation import Rule
from dovetail.errors import ConfigurationError, line_of

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

GivenCatalog: TypeAlias = Annotated[
    str | Mapping[str, str],
    Rule("the name of a catalog, or a mapping of its properties to texts", bool),
]
"""A catalog: its name in pyiceberg's configuration, or its properties."""

_DEFAULT = "default"


@dataclass(frozen=True)
class TableAddress:
    """The name of an Iceberg table with its namespace, and the catalog that has it."""

    table: str
    """The name with its namespace, such as ``sales.orders``."""
    catalog: str
    """The name of the catalog."""
    properties: tuple[tuple[str, str], ...] = field(repr=False)
    """The properties of the catalog, in the order given; empty for those of pyiceberg's
    configuration. They may be secret.
    """

    @classmethod
    def of(cls, table: str, catalog: GivenCatalog) -> TableAddress:
        """Return the address of a table; nothing is opened or checked. ``table``: its name with the
        namespace, such as ``sales.orders``. ``catalog``: the catalog's name in pyiceberg's
        configuration, or its properties. The property ``name`` names the catalog, by default
        ``"default"``, and is not kept as a property.
        """
        if isinstance(catalog, str):
            return cls(table, catalog, ())
        properties = {name: value for name, value in catalog.items() if name != "name"}
        return cls(table, catalog.get("name", _DEFAULT), tuple(properties.items()))

    @classmethod
    def from_json(cls, text: str) -> TableAddress:
        """Return the address that ``to_json`` wrote as ``text``. Another text raises
        ``ValueError``, ``KeyError`` or ``TypeError``.
        """
        parts = json.loads(text)
        properties = tuple((name, value) for name, value in parts.pop("properties"))
        return cls(**parts, properties=properties)

    def to_json(self) -> str:
        """Return the address as JSON text, with the catalog's secrets. ``from_json`` reads it."""
        return json.dumps(asdict(self))

    @property
    def short_name(self) -> str:
        """The last part of the table's name, without its namespace; all of a name without dots."""
        return self.table.rpartition(".")[2]

    def open_catalog(self, operator: str) -> Catalog:
        """Return the catalog of the table, opened anew. ``operator``: the subject of errors. Raises
        ``ConfigurationError`` if the catalog cannot be opened, or if pyiceberg is not installed.
        """
        refuse_without_pyiceberg(operator)
        from pyiceberg.catalog import load_catalog

        try:
            return load_catalog(self.catalog, **dict(self.properties))
        except Exception as error:  # each kind of catalog has errors of its own
            raise ConfigurationError(
                operator,
                f"the catalog {self.catalog!r} cannot be opened: {line_of(error)}",
                "Give its properties in catalog=, or name one of pyiceberg's configuration",
            ) from error

    def open(self, operator: str, opened: Table | None = None) -> Table:
        """Return the table as it is now. Raises ``ConfigurationError`` if the table or its catalog
        cannot be read, or if pyiceberg is not installed.

        ``operator``: the subject of errors. ``opened``: a handle of this table, which is brought up
        to date in place and returned; None to open the catalog anew.
        """
        if opened is not None:
            load = opened.refresh
        else:
            load = partial(self.open_catalog(operator).load_table, self.table)
        try:
            return load()
        except Exception as error:  # likewise
            raise ConfigurationError(
                operator,
                f"table={self.table!r} of the catalog {self.catalog!r} cannot be read: "
                f"{line_of(error)}",
                "Name a table of the catalog with its namespace, such as 'sales.orders'",
            ) from error


def refuse_without_pyiceberg(operator: str) -> None:
    """Raise ``ConfigurationError`` if the package pyiceberg is not installed. ``operator``: the
    subject of the error.
    """
    import_package(operator, "iceberg", "pyiceberg.catalog")
