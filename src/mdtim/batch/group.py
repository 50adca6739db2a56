"""One group of a grouped table, filled: what Spark, Dask and pandas hand to a function."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import pandas as pd

if TYPE_CHECKING:
    from mdtim.imputer import MDTIMImputer


def fill_group(
    group: pd.DataFrame,
    *,
    model: str | os.PathLike[str],
    quantiles: Sequence[float] = (),
    device: str = "auto",
) -> pd.DataFrame:
    """Fill the gaps of one group, a pure function of the group and the model.

    A group is a series (or several, if the model was fitted with an `id`), whole: what lies in
    other groups is not seen. The model is read once in each process, and again if it is saved anew.

    Parameters
    ----------
    group : pandas DataFrame with the columns the model was fitted to
    model : folder written by :meth:`MDTIMImputer.save`, readable by every worker
    quantiles : levels to add as columns `name_q0.05`
    device : "auto", "cpu", "cuda" or "cuda:N"

    Returns
    -------
    DataFrame with the same columns, types, index and order of rows, and the quantiles behind them

    Examples
    --------
    Spark, with the group's column in the table::

        spark_frame.groupBy("sensor").applyInPandas(
            partial(fill_group, model="/models/weather"), schema=spark_frame.schema
        )
    """
    written = os.stat(os.path.join(model, "config.json")).st_mtime_ns
    imputer = _imputer(os.fspath(model), device, written)
    filled: pd.DataFrame
    if quantiles:
        filled = imputer.impute(group).with_quantiles(quantiles)
    else:
        filled = imputer.transform(group)
    return filled


@lru_cache(maxsize=4)
def _imputer(folder: str, device: str, written: int) -> MDTIMImputer:
    from mdtim.imputer import MDTIMImputer

    return MDTIMImputer.load(folder, device=device)
