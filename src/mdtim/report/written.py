"""Filled cells as the table holds them: a column of integers gets integers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from mdtim.panel import BoolArray, FloatArray

if TYPE_CHECKING:
    from mdtim.imputation import Imputation

MAX_DECIMALS = 6
_ENOUGH = 1_000
"""Values that tell, as a rule, that a column is not rounded."""


def written_cells(imputation: Imputation) -> FloatArray:
    """(M,) the filled values of the cells, rounded where the filled table has them so."""
    cells = imputation.cells
    is_whole = _integer_variates(imputation)[cells.variates]
    return np.where(is_whole, np.rint(cells.filled), cells.filled)


def _integer_variates(imputation: Imputation) -> BoolArray:
    """(V,) True for the columns that the filled table keeps as integers."""
    filled, variates = imputation.values, imputation.table.panel.variates
    if isinstance(filled, np.ndarray):
        return np.full(len(variates), filled.dtype.kind in "iu")
    if isinstance(filled, pd.DataFrame):
        places = {str(name): place for place, name in enumerate(filled.columns)}
        kept = [_holds_integers(filled.iloc[:, places[name]]) for name in variates]
    else:
        kept = [filled.schema[name].is_integer() for name in variates]
    return np.array(kept, dtype=bool)


def _holds_integers(column: pd.Series[Any]) -> bool:
    if pd.api.types.is_object_dtype(column.dtype):
        return pd.api.types.infer_dtype(column, skipna=True) == "integer"
    return bool(pd.api.types.is_integer_dtype(column.dtype))


def decimals_of(column: FloatArray) -> int | None:
    """Decimals that the known values of a column are rounded to; None for more than six.

    Examples
    --------
    >>> decimals_of(np.array([20.5, np.nan, 21.25])), decimals_of(np.array([3.0, 1e9]))
    (2, 0)
    >>> decimals_of(np.array([np.pi, 2.0])) is None
    True
    """
    known = column[np.isfinite(column)]
    for decimals in range(MAX_DECIMALS + 1):
        if _are_rounded(known[:_ENOUGH], decimals) and _are_rounded(known, decimals):
            return decimals
    return None


def _are_rounded(values: FloatArray, decimals: int) -> bool:
    # What single precision makes of a rounded number still counts as one.
    with np.errstate(over="ignore", invalid="ignore"):
        return bool((np.abs(np.round(values, decimals) - values) <= 1e-7 * np.abs(values)).all())
