"""Columns one by one: which hold numbers, what these are, and how to fill some of their cells."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mdtim.panel import BoolArray, FloatArray

MISSING_WORDS = (
    *("", "#N/A", "#NA", "<NA>", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null"),
)
"""Missing numbers as pandas reads them; in columns of text these are text like any other."""
_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+([eE][+-]?\d+)?")
_NUMBERS = frozenset({"integer", "floating", "mixed-integer-float"})


def unique_names(frame: pd.DataFrame) -> list[str]:
    """(C,) the columns as text, each of them different."""
    if frame.columns.nlevels > 1:
        raise ValueError("the columns have several levels; flatten them to one name each")
    names = pd.Index([str(label) for label in frame.columns])
    if names.has_duplicates:
        repeated = ", ".join(map(repr, names[names.duplicated()].unique()))
        raise ValueError(f"several columns are called {repeated}; rename them")
    return names.tolist()


def check_known(wanted: tuple[str, ...] | None, names: list[str]) -> None:
    """Refuse to fill columns that the table does not have."""
    unknown = [name for name in wanted or () if name not in names]
    if unknown:
        raise ValueError(
            f"columns names {', '.join(map(repr, unknown))}, but the table has {', '.join(names)}"
        )


def in_order(frame: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """The table with its columns as named; refuse one that has others."""
    lacking = [name for name in names if name not in frame.columns]
    further = [str(name) for name in frame.columns if name not in names]
    if lacking or further:
        found = [f"lacks {', '.join(lacking)}"] * bool(lacking)
        found += [f"has {', '.join(further)} besides"] * bool(further)
        raise ValueError(
            f"the model was fitted to the columns {', '.join(names)}, and this table "
            f"{' and '.join(found)}; rename, add or drop columns"
        )
    return frame[list(names)]


def find_numeric(
    frame: pd.DataFrame, names: list[str], skipped: set[int], wanted: tuple[str, ...] | None
) -> list[int]:
    """Find the positions of the columns to fill.

    Parameters
    ----------
    frame, names : the table and its C column names
    skipped : positions of the time and id columns
    wanted : the columns the user names; None for all numeric ones

    Examples
    --------
    >>> frame = pd.DataFrame({"day": ["Mo", "Tu"], "level": [1.0, None], "open": [True, False]})
    >>> find_numeric(frame, list(frame), set(), None)
    [1]
    """
    check_known(wanted, names)
    if wanted is not None and not wanted:
        raise ValueError("columns names none; leave it out to fill every numeric column")
    chosen, other = [], []
    for position, name in enumerate(names):
        if wanted is not None and name not in wanted:
            continue
        series = frame.iloc[:, position]
        if position in skipped:
            other.append(f"{name!r} (time or id)")
        elif _is_numeric(series):
            chosen.append(position)
        elif wanted is not None and series.isna().all():
            if series.dtype != object:  # what it is filled with must fit in
                raise ValueError(
                    f"column {name!r} holds nothing and is of type {series.dtype}, but is to be "
                    "filled with numbers; convert it to float"
                )
            chosen.append(position)
        elif series.dtype.kind == "c":
            raise ValueError(f"column {name!r} is complex; split it into two real columns")
        else:
            _refuse_mixture(series, name)
            other.append(f"{name!r} ({series.dtype})")
    if wanted is not None and other:
        raise ValueError(
            f"columns asks to fill {', '.join(other)}, not numeric; convert them or choose among "
            f"{', '.join(names)}"
        )
    if not chosen:
        found = ", ".join(other) or "none"
        raise ValueError(
            f"the table has no numeric column to fill, only {found}; convert text that stands "
            f"for numbers first"
        )
    return chosen


# 20,063.00 or 1'234 or 20.1 °C, but not a date, a time of day or a name with a number in it.
_NUMBER_IN_TEXT = re.compile(
    r"\s*[$€£]?\s*[+\-\u2212]?\d[\d.,' \u00a0]*([dD][+-]?\d+|\s*[^\d\s:/-]{0,5})\s*"
)


def notes_on_left(frame: pd.DataFrame, names: list[str], left: list[int]) -> tuple[str, ...]:
    """Say which columns keep their gaps though their owner may think that they are numbers.

    Parameters
    ----------
    left : positions of the columns that are neither filled nor time nor id

    Examples
    --------
    >>> frame = pd.DataFrame({"place": ["Rome", None], "heat": ["20.1 C", None]})
    >>> notes_on_left(frame, list(frame), [0, 1])[0][:40]
    "column 'heat' is not numeric: its 1 miss"
    """
    notes = []
    for position in left:
        series = frame.iloc[:, position]
        known = series[series.notna() & ~series.astype(object).isin(MISSING_WORDS)]
        missing = len(series) - len(known)
        # A separator at the end of all lines makes a column that nobody named.
        if missing and not len(known) and not names[position].startswith("Unnamed: "):
            notes.append(f"nothing is observed in column {names[position]!r}: it stays missing")
        words = _words_for_missing(known)
        if words:
            notes.append(
                f"column {names[position]!r} holds numbers beside {words} and is taken for text: "
                "none of it is filled; leave such cells empty if they are missing"
            )
        if words or not missing or not len(known):
            continue
        inferred = pd.api.types.infer_dtype(known.astype(object), skipna=True)
        sample = known.head(50).astype(str)
        numbers = sample.map(_NUMBER_IN_TEXT.fullmatch).notna()
        truths = sample.str.lower().isin(("true", "false"))
        reads = inferred == "string" and (numbers.all() or truths.all())
        if reads or inferred in {*_NUMBERS, "boolean", "decimal", "timedelta"}:
            notes.append(
                f"column {names[position]!r} is not numeric: its {missing:,} missing cells stay "
                f"missing; convert cells such as {sample.iloc[0]!r} to numbers to have them filled"
            )
    return tuple(notes)


def _words_for_missing(known: pd.Series[Any]) -> str:
    """One or two short words in a column of numbers, such as -, that seem to mean missing."""
    if pd.api.types.infer_dtype(known.astype(object), skipna=True) != "string":
        return ""
    sample = known.head(1_000).astype(str)
    words = sample[pd.to_numeric(sample, errors="coerce").isna()]
    are_repeated = 0 < words.nunique() <= min(2, len(words) / 3) and words.str.len().max() <= 8
    if not are_repeated or len(sample) - len(words) < 0.1 * len(sample):
        return ""
    return " and ".join(map(repr, words.unique()))


def as_floats(series: pd.Series[Any]) -> FloatArray:
    """(R,) a numeric column as float64, NaN where missing."""
    return series.to_numpy(dtype=np.float64, na_value=np.nan)


def objects_as_floats(array: NDArray[Any]) -> FloatArray:
    """Convert an array of Python numbers and None to float64 of the same shape."""
    cells = pd.Series(array.ravel(), dtype=object)
    if pd.api.types.infer_dtype(cells, skipna=True) not in (*_NUMBERS, "empty"):
        raise ValueError("the array mixes numbers and other objects; pass numbers and None only")
    return as_floats(cells).reshape(array.shape)


def clear_infinite(
    values: FloatArray, infinite: BoolArray, inf_as_missing: bool, name: str, place: str
) -> None:
    """Turn infinite cells missing in place, if the user says so."""
    if not inf_as_missing:
        raise ValueError(
            f"column {name!r} is infinite in {place} ({int(infinite.sum())} such cells); correct "
            f"them, or pass inf_as_missing=True to have them filled"
        )
    values[infinite] = np.nan


def clear_placeholders(values: FloatArray, placeholders: Iterable[float]) -> None:
    """Turn numbers that stand for missing into NaN, in place.

    What single precision makes of a number counts as equal, but nothing that is only near it.
    """
    for placeholder in placeholders:
        if not np.isfinite(placeholder):
            raise ValueError(
                f"missing_values has {placeholder}; NaN is missing anyway, and infinite cells are "
                "with inf_as_missing"
            )
        with np.errstate(over="ignore"):  # beyond single precision nothing is equal but itself
            single = float(np.float32(placeholder))
        # A whole number stands for itself alone, unless no column of integers could hold it.
        is_exact = float(placeholder).is_integer() and abs(placeholder) < 2**63
        values[(values == placeholder) | ((values == single) & (not is_exact))] = np.nan


def notes_on_placeholders(values: FloatArray, names: Sequence[str]) -> tuple[str, ...]:
    """(N, V) numbers that look as if they stood for missing: nines far from all others.

    Examples
    --------
    >>> notes_on_placeholders(np.array([[2.5], [-999.0], [3.1]]), ["level"])[0][:39]
    "column 'level' holds -999, far from all"
    """
    notes = []
    for name, column in zip(names, values.T, strict=True):
        found: list[str] = []
        known = column[~np.isnan(column)]
        while known.size and (end := _lonely_end(known)) is not None:
            found.append(f"{end:.10g}")
            known = known[known != end]
        if found:
            listed = ", ".join(found)
            notes.append(
                f"column {name!r} holds {listed}, far from all its other values, which counts as "
                f"a reading; if it means missing, pass missing_values=[{listed}] "
                f"(--missing-values {listed.replace(' ', '')})"
            )
    return tuple(notes)


def _lonely_end(known: FloatArray) -> float | None:
    """The least or the most number, if it is all nines and farther off than the others range."""
    for end in (float(known.min()), float(known.max())):
        digits = f"{abs(end):.10g}".replace(".", "")
        if len(digits) < 2 or set(digits) != {"9"}:
            continue
        others = known[known != end]
        if others.size and np.abs(others - end).min() > np.ptp(others):
            return end
    return None


def fill_cells(series: pd.Series[Any], to_fill: BoolArray, numbers: FloatArray) -> pd.Series[Any]:
    """Copy a column and put numbers into some of its cells, in its own type.

    Parameters
    ----------
    series : (R,)
    to_fill : (R,) True for the K cells that get a number
    numbers : (K,) rounded and limited to what the type can hold

    Examples
    --------
    >>> column = pd.Series([2**60 + 1, None], dtype="Int64")
    >>> fill_cells(column, np.array([False, True]), np.array([2.7])).tolist()
    [1152921504606846977, 3]
    """
    dtype: Any = series.dtype
    if isinstance(dtype, pd.SparseDtype):
        dense = pd.Series(np.asarray(series), index=series.index, name=series.name)
        return fill_cells(dense, to_fill, numbers).astype(dtype)
    array: Any = series.array.copy()
    if pd.api.types.is_object_dtype(dtype):
        whole = pd.api.types.infer_dtype(series, skipna=True) == "integer"
        array[to_fill] = [round(x) for x in numbers.tolist()] if whole else numbers.tolist()
    else:
        array[to_fill] = as_type(numbers, np.dtype(getattr(dtype, "numpy_dtype", dtype)))
    result: pd.Series[Any] = pd.Series(array, index=series.index, name=series.name, dtype=dtype)
    return result


def as_type(numbers: FloatArray, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Convert to the nearest numbers a type can hold."""
    if dtype.kind == "f":
        limit = float(np.finfo(dtype).max) if dtype.itemsize < 8 else np.inf
        return np.clip(numbers, -limit, limit).astype(dtype)
    if dtype.kind not in "iu":
        return numbers.astype(dtype)
    limits = np.iinfo(dtype)
    whole = np.rint(numbers)
    # float(limits.max) may be one more than the type can hold, hence not np.clip.
    above, below = whole >= float(limits.max), whole <= float(limits.min)
    result = np.where(above | below, 0.0, whole).astype(dtype)
    result[above], result[below] = limits.max, limits.min
    return result


def _is_numeric(series: pd.Series[Any]) -> bool:
    if pd.api.types.is_object_dtype(series.dtype):
        return pd.api.types.infer_dtype(series, skipna=True) in _NUMBERS
    return series.dtype.kind in "iuf"


def _is_decimal_comma(cell: Any) -> bool:
    """Whether a cell is a number with a comma: such columns are read if nothing else is in them."""
    return isinstance(cell, str) and _DECIMAL_COMMA.fullmatch(cell.strip()) is not None


def _refuse_mixture(series: pd.Series[Any], name: str) -> None:
    """Refuse text that is numbers for the most part: one bad cell must not hide a column."""
    inferred = pd.api.types.infer_dtype(series, skipna=True)
    if inferred not in ("string", "mixed", "mixed-integer"):
        return
    try:
        codes, uniques = pd.factorize(series)
    except TypeError:  # lists and the like
        return
    cells = pd.Series(uniques, dtype=object)
    number_cells = pd.to_numeric(cells, errors="coerce").notna().to_numpy()
    with_comma = np.array([_is_decimal_comma(cell) for cell in cells], dtype=bool)
    number_cells = number_cells | with_comma
    rows = np.flatnonzero(codes >= 0)
    number_rows = number_cells[codes[rows]]
    if rows.size and not number_rows.all() and 2 * number_rows.sum() >= rows.size:
        row = rows[~number_rows][0]
        raise ValueError(
            f"column {name!r} mixes numbers and text: row {row} holds {series.iloc[row]!r}; "
            f"correct or remove such cells, or name the columns to fill"
        )
