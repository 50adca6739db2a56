"""Data sets larger than one process: partitioned tables, engines, and groups of other engines."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mdtim.batch.group import fill_group
    from mdtim.batch.run import BatchOptions, BatchReport, run_batch

# Loaded on first use, like the names of the package above: the commands' help needs none of it.
_HOMES = {
    "BatchOptions": "mdtim.batch.run",
    "BatchReport": "mdtim.batch.run",
    "fill_group": "mdtim.batch.group",
    "run_batch": "mdtim.batch.run",
}
__all__ = ["BatchOptions", "BatchReport", "fill_group", "run_batch"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'mdtim.batch' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
