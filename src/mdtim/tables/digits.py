"""Signs inside numbers written as text: which are decimal signs, and which group thousands.

Columns are text, as Arrow's arrays of strings.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mdtim.tables.columns import MISSING_WORDS
from mdtim.tables.table import TableWarning

_MISSING = pa.array(MISSING_WORDS)
_OTHER = {".": ",", ",": "."}

_COMMA_NUMBER = r"^[+-]?[\d.]*(,\d+)?([eE][+-]?\d+)?$|^[+-]?\d{1,3}(,\d{3})+(\.\d+)?$"
_COMMA_GROUPS = r"^[+-]?\d+$|^[+-]?\d{1,3}(,\d{3})+(\.\d+)?$"
DOT_NUMBER = r"^[+-]?\d*(\.\d+)?([eE][+-]?\d+)?$|^[+-]?\d{1,3}(\.\d{3})+$"
_DOT_GROUPS = r"^[+-]?\d+$|^[+-]?\d{1,3}(\.\d{3})+$"


def find_grouping(columns: Collection[pa.ChunkedArray], *, has_decimal_commas: bool) -> str:
    """The sign between groups of three digits, in a file whose separator is no comma.

    Where one column has decimal commas, dots between groups are no decimals. Where all commas
    stand as between groups, and a dot of some column cannot, it is the other way round.
    """
    commas = [column for column in columns if is_of(column, _COMMA_NUMBER, ",")]
    if has_decimal_commas or not all(is_of(column, _COMMA_GROUPS, ",") for column in commas):
        return "."
    dots = [column for column in columns if is_of(column, DOT_NUMBER, ".")]
    if commas and any(not is_of(column, _DOT_GROUPS, ".") for column in dots):
        return ","
    return "." if commas else ""


def is_of(column: pa.ChunkedArray, pattern: str, sign: str) -> bool:
    """Whether all of a column's cells are of a form, and some of them have a sign."""
    cells = without_missing(column)
    alike = pc.all(pc.match_substring_regex(cells, pattern)).as_py()
    return bool(alike and pc.any(pc.match_substring(cells, sign)).as_py())


def without_missing(column: pa.ChunkedArray) -> Any:
    """The cells without spaces around them, null where a word means missing."""
    cells = pc.utf8_trim_whitespace(column)
    return pc.if_else(pc.is_in(cells, _MISSING), None, cells)


def groups(cells: Any, sign: str) -> bool:
    """Whether all cells with a sign may have it between groups of three digits."""
    signed = cells.filter(pc.match_substring(cells, sign))
    form = rf"^[+-]?[1-9]\d{{0,2}}(\{sign}\d{{3}})+(\{_OTHER[sign]}\d+)?$"
    return bool(len(signed)) and bool(pc.all(pc.match_substring_regex(signed, form)).as_py())


def _shows_groups(cells: Any, sign: str) -> bool:
    """Whether a column's own cells leave no doubt that a sign groups their digits."""
    other = _OTHER[sign]
    form = rf"\{sign}\d{{3}}[\{sign}\{other}]|^[+-]?\d{{1,3}}(\{other}\d+)?$"
    return bool(pc.any(pc.match_substring_regex(cells, form)).as_py())


def note_doubts(numeric: Mapping[str, pa.ChunkedArray], grouping: str) -> None:
    """Warn of numbers that can be read in two ways, a thousand times apart.

    Parameters
    ----------
    numeric : columns of numbers as text
    grouping : sign that was taken to group digits
    """
    known = {name: pc.drop_null(without_missing(column)) for name, column in numeric.items()}
    grouped = {name for name, cells in known.items() if grouping and groups(cells, grouping)}
    sure = {  # decimal signs that some column can only mean so
        sign
        for sign in ".,"
        for name, cells in known.items()
        if name not in grouped and is_of(cells, rf"^[+-]?\d*(\{sign}\d+)?$", sign)
        if not is_of(cells, rf"^[+-]?([1-9]\d{{0,2}}\{sign}\d{{3}}|\d+)$", sign)
    }
    for name, cells in known.items():
        if name in grouped:
            # Beside decimal dots a comma can only group; but one elsewhere may be of a list: 1,2.
            if grouping == "." and not _shows_groups(cells, grouping):
                cell = _first_with(cells, grouping)
                _warn(
                    f"numbers such as {cell!r} in column {name!r} are read as thousands, as other "
                    f"numbers have decimal commas; if not, write {cell.replace('.', ',')}"
                )
            continue
        for sign in ".,":
            if _may_group(cells, sign, sure):
                _warn(
                    f"numbers such as {_first_with(cells, sign)!r} in column {name!r} are read "
                    "with a decimal sign; if it groups thousands, remove it"
                )
                break


def _first_with(cells: Any, sign: str) -> str:
    found: str = cells.filter(pc.match_substring(cells, sign))[0].as_py()
    return found


def _warn(message: str) -> None:
    warnings.warn(message, TableWarning, stacklevel=4)


def _may_group(cells: Any, sign: str, sure: Collection[str]) -> bool:
    """Whether numbers may be a thousand times larger, and the rest of the column rather says so.

    All with the sign have three digits behind it, and those without are of another size. Where
    there are none without, another column may show that the sign is a decimal one.
    """
    is_plain = pc.match_substring_regex(cells, r"^[+-]?\d{1,3}$")
    is_signed = pc.match_substring_regex(cells, rf"^[+-]?[1-9]\d{{0,2}}(\{sign}\d{{3}})+$")
    if not pc.all(pc.or_(is_plain, is_signed)).as_py():
        return False
    plain, signed = cells.filter(is_plain), cells.filter(is_signed)
    if not len(signed) or (not len(plain) and sign in sure):
        return False
    if len(plain):
        thousands = pc.cast(pc.replace_substring(signed, sign, ""), pa.float64()).to_numpy()
        hundreds = np.abs(pc.cast(plain, pa.float64()).to_numpy())
        if np.median(hundreds) < 10 * np.median(np.abs(thousands)) / 1_000:
            return False
    return True
