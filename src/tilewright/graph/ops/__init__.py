"""The op table: one row an operator, one module a family. Out: `OPS`, every row by name. Must not know passes or targets."""

from __future__ import annotations

from ..ir import INPUT, Op
from . import composite, contract, index, kernel, opaque, pointwise, reduce, scan, view

FAMILIES = (pointwise, reduce, scan, view, index, contract, composite, opaque, kernel)

OPS: dict[str, Op] = {row.name: row for row in (INPUT, *(row for family in FAMILIES for row in family.ROWS))}
