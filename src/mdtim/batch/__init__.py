"""Data sets larger than one process: partitioned tables, engines, and groups of other engines."""

from mdtim.batch.group import fill_group
from mdtim.batch.run import BatchOptions, BatchReport, run_batch

__all__ = ["BatchOptions", "BatchReport", "fill_group", "run_batch"]
