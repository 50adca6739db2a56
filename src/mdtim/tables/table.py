"""The way in and out: whatever table the caller has becomes a `Panel`, and comes back filled.

Rows are counted from 0 in every message.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mdtim.panel import BoolArray, FloatArray, IntArray, Panel
from mdtim.tables.columns import (
    as_floats,
    as_type,
    check_known,
    clear_infinite,
    clear_placeholders,
    fill_cells,
    find_numeric,
    notes_on_left,
    notes_on_placeholders,
    objects_as_floats,
    unique_names,
)
from mdtim.tables.grid import Spacing
from mdtim.tables.timeline import Timeline, expand, read_timeline

if TYPE_CHECKING:
    import polars as pl


class TableWarning(UserWarning):
    """The table could be read, but in a way its owner should know about."""


@dataclass(frozen=True)
class TableOptions:
    """What the user says about a table; everything may be left out."""

    time: str | None = None
    """Name of the time column; None: the index, or found by itself."""
    id: str | None = None
    """Name of the column that tells several series apart."""
    freq: str | None = None
    """Pandas offset alias; skipped timestamps become rows, in the output too."""
    columns: tuple[str, ...] | None = None
    """Numeric columns to look at and fill; None: all of them."""
    inf_as_missing: bool = False
    """Fill infinite cells instead of refusing them."""
    missing_values: tuple[float, ...] = ()
    """Numbers that stand for missing, beside NaN."""
    spacing: Spacing | None = None
    """Spacing of the data set that the table is a part of; None: found by itself."""
    date_orders: tuple[str, ...] = ()
    """Such as dmy, of the dates of that data set as text; none: found by itself."""


_DEFAULTS = TableOptions()


class Table(ABC):
    """A caller's table next to its panel; made by `Table.read`.

    The panel has N rows and V variates. Rows of the panel are sorted by series and time and
    include steps the table skips; `restore`, `arrange` and `with_columns` lead back to the
    caller's rows and kind of table.

    Examples
    --------
    >>> table = Table.read(np.array([[1.0, 4.0], [np.nan, 5.0]]))
    >>> table.panel.variates
    ('x0', 'x1')
    >>> table.restore(np.full((2, 2), 9.0))
    array([[1., 4.],
           [9., 5.]])
    """

    panel: Panel
    notes: tuple[str, ...] = ()
    """What `read` warned about."""
    timeline: Timeline | None = None
    """Where the rows of a DataFrame lie in time; None for an array."""

    clock_column: str | None = None
    """Name of the column that tells the time; None for an index, or without one."""

    @classmethod
    def read(cls, data: Any, options: TableOptions = _DEFAULTS) -> Table:
        """Read a table; the input is never changed.

        Parameters
        ----------
        data : (steps, variates) or (windows, steps, variates) array or nested lists, or a pandas
            or polars DataFrame
            Each window of a three-dimensional array is a series of its own. NaN counts as
            missing in every kind of table.
        options : what is known about a DataFrame

        Raises
        ------
        ValueError
            If the table cannot be read without guessing: the message names the column and row.
        """
        table: Table
        if isinstance(data, pd.DataFrame):
            table = _PandasTable(data, options)
        elif type(data).__module__.partition(".")[0] == "polars":
            table = _PolarsTable(data, options)
        else:
            table = _ArrayTable(data, options)
        for note in table.notes:
            warnings.warn(note, TableWarning, stacklevel=2)
        return table

    @property
    def num_skipped(self) -> int:
        """Steps of the panel that no row of the restored table stands for."""
        return 0

    def count(self, chosen_NV: BoolArray) -> int:
        """How many cells of the caller's rows are chosen; steps that it skips have none."""
        return int(np.asarray(self.arrange(chosen_NV.astype(np.float64))).sum())

    @abstractmethod
    def restore(self, values: FloatArray) -> Any:
        """Give the caller's table back with its missing cells taken from `values`.

        Parameters
        ----------
        values : (N, V) shaped like the panel; NaN leaves a cell as it was

        Returns
        -------
        A new table of the caller's kind with the same types, columns, index and order of rows
        (sorted by series and time with freq). Observed cells are the same to the last bit.
        """

    @abstractmethod
    def arrange(self, values: FloatArray) -> Any:
        """Give (N, V) numbers such as standard deviations the caller's kind and order of rows.

        Only the filled variates are in it, as float64.
        """

    @abstractmethod
    def with_columns(self, filled: Any, extra: Mapping[str, FloatArray]) -> Any:
        """Append columns `variate_suffix` to a restored table, for each suffix of `extra`.

        Parameters
        ----------
        filled : what `restore` returned
        extra : suffix to (N, V) numbers
        """


class _ArrayTable(Table):
    def __init__(self, data: Any, options: TableOptions) -> None:
        array = _as_array(data)
        for option in ("time", "id", "freq"):
            if getattr(options, option) is not None:
                raise ValueError(
                    f"{option} was given, but an array has no named columns; pass a DataFrame"
                )
        names = [f"x{position}" for position in range(array.shape[-1])]
        if array.size == 0:
            raise ValueError(f"the array is empty, of shape {array.shape}; pass at least one row")
        if array.dtype.kind not in "iufO":
            raise ValueError(f"the array holds {array.dtype}, expected numbers; convert it first")
        check_known(options.columns, names)
        chosen = [p for p, n in enumerate(names) if options.columns is None or n in options.columns]
        windows = len(array) if array.ndim == 3 else 1
        self._array = array.copy()  # the caller may use his again before a result is read
        self._chosen = np.array(chosen, dtype=np.int64)
        values = objects_as_floats(array) if array.dtype == object else array
        values = values.reshape(-1, len(names))[:, chosen].astype(np.float64)
        infinite = np.isinf(values)
        if infinite.any():
            row, column = np.argwhere(infinite)[0]
            place = f"row {row}"
            if array.ndim == 3:
                place = "window {}, step {}".format(*divmod(int(row), array.shape[1]))
            clear_infinite(values, infinite, options.inf_as_missing, names[chosen[column]], place)
        clear_placeholders(values, options.missing_values)
        self.panel = Panel(
            values,
            np.arange(windows + 1) * (len(values) // windows),
            tuple(names[position] for position in chosen),
            names=tuple(range(windows)) if array.ndim == 3 else (),
            are_windows=array.ndim == 3,
        )
        self.notes = notes_on_placeholders(values, self.panel.variates)

    def restore(self, values: FloatArray) -> Any:
        assert values.shape == self.panel.values.shape
        filled = np.array(self._array, order="C")
        rows = filled.reshape(-1, filled.shape[-1])
        for variate, position in enumerate(self._chosen):
            to_fill = _to_fill(self.panel.values[:, variate], values[:, variate])
            rows[to_fill, position] = as_type(values[to_fill, variate], filled.dtype)
        return filled

    def arrange(self, values: FloatArray) -> Any:
        return np.array(values, dtype=np.float64).reshape(*self._array.shape[:-1], -1)

    def with_columns(self, filled: Any, extra: Mapping[str, FloatArray]) -> Any:
        return np.concatenate([filled, *(self.arrange(new) for new in extra.values())], axis=-1)


class _PandasTable(Table):
    def __init__(self, frame: pd.DataFrame, options: TableOptions) -> None:
        names = unique_names(frame)
        if len(frame) == 0:
            raise ValueError("the table has no rows; pass at least one")
        known = (options.spacing, options.date_orders)
        timeline = read_timeline(frame, options.time, options.id, options.freq, *known)
        self.timeline = timeline
        self.notes = timeline.notes
        roles = (timeline.time, timeline.id)
        skipped = {role.position for role in roles if role is not None and not role.is_level}
        if timeline.time is not None and not timeline.time.is_level:
            self.clock_column = names[timeline.time.position]
        self._chosen = find_numeric(frame, names, skipped, options.columns)
        if options.columns is None:
            left = set(range(len(names))).difference(skipped, self._chosen)
            self.notes += notes_on_left(frame, names, sorted(left))
        self._types = frame.dtypes
        # Under copy on write this guards against later changes of the caller's own frame.
        self._frame = frame.copy(deep=False)
        self._places: IntArray | slice = timeline.places
        if options.freq is not None:
            self._expand(timeline)
        if np.array_equal(self._places, np.arange(timeline.num_rows)):
            self._places = slice(None)
        values = np.full((timeline.num_rows, len(self._chosen)), np.nan)
        for variate, position in enumerate(self._chosen):
            column = as_floats(self._frame.iloc[:, position]).copy()
            infinite = np.isinf(column)
            if infinite.any():
                place = f"row {np.flatnonzero(infinite)[0]}"
                clear_infinite(column, infinite, options.inf_as_missing, names[position], place)
            clear_placeholders(column, options.missing_values)
            values[self._places, variate] = column
        self.panel = Panel(
            values,
            timeline.offsets,
            tuple(names[position] for position in self._chosen),
            timeline.step_seconds,
            timeline.wall_times,
            timeline.names,
        )
        self.notes += notes_on_placeholders(values, self.panel.variates)

    @property
    def num_skipped(self) -> int:
        return len(self.panel.values) - len(self._frame)

    def restore(self, values: FloatArray) -> Any:
        assert values.shape == self.panel.values.shape
        columns: dict[int, pd.Series[Any]] = {}
        for variate, position in enumerate(self._chosen):
            numbers = values[self._places, variate]
            to_fill = _to_fill(self.panel.values[self._places, variate], numbers)
            before = self._frame.iloc[:, position]
            after = fill_cells(before, to_fill, numbers[to_fill]) if to_fill.any() else before
            wanted = self._types.iloc[position]
            if after.dtype != wanted and not after.isna().any():
                after = after.astype(wanted)  # integers, nullable since rows were inserted
            if after is not before:
                columns[position] = after
        return self._replace(columns)

    def arrange(self, values: FloatArray) -> Any:
        assert values.shape == self.panel.values.shape
        labels = self._frame.columns[self._chosen]
        rows = np.array(values[self._places], dtype=np.float64)
        return pd.DataFrame(rows, index=self._frame.index, columns=labels)

    def with_columns(self, filled: Any, extra: Mapping[str, FloatArray]) -> Any:
        new = []
        for names, values in zip(self._new_names(filled, extra), extra.values(), strict=True):
            columns = self.arrange(values).set_axis(names, axis=1)
            new.append(columns.set_axis(filled.index, axis=0))
        return pd.concat([filled, *new], axis=1)

    def _new_names(self, filled: Any, extra: Mapping[str, FloatArray]) -> list[list[str]]:
        names = [[f"{variate}_{suffix}" for variate in self.panel.variates] for suffix in extra]
        taken = {str(name) for name in filled.columns}
        clash = sorted(taken.intersection(name for group in names for name in group))
        if clash:
            raise ValueError(f"the table already has columns {', '.join(clash)}; rename them")
        return names

    def _expand(self, timeline: Timeline) -> None:
        self._frame = expand(self._frame, timeline)
        self._places = np.arange(timeline.num_rows)

    def _replace(self, columns: dict[int, pd.Series[Any]]) -> Any:
        result = self._frame.copy()
        for position, series in columns.items():
            result.isetitem(position, series.array)
        return result


class _PolarsTable(_PandasTable):
    """A polars frame, read through pandas columns that share its Arrow memory."""

    def __init__(self, data: Any, options: TableOptions) -> None:
        import polars as pl

        if not isinstance(data, pl.DataFrame):
            hint = "collect it first" if isinstance(data, pl.LazyFrame) else "pass a DataFrame"
            raise ValueError(f"expected a table, found a polars {type(data).__name__}; {hint}")
        # A column of nothing has no type of its own; one that is named is to get numbers.
        wanted = options.columns or ()
        empty = [name for name in wanted if data.schema.get(name) == pl.Null]
        self._data = data.with_columns(pl.col(name).cast(pl.Float64) for name in empty)
        super().__init__(_arrow_view(self._data), options)

    def arrange(self, values: FloatArray) -> Any:
        import polars as pl

        rows = values[self._places]
        columns = {name: rows[:, v] for v, name in enumerate(self.panel.variates)}
        return pl.DataFrame(columns, nan_to_null=True)

    def with_columns(self, filled: Any, extra: Mapping[str, FloatArray]) -> Any:
        for names, values in zip(self._new_names(filled, extra), extra.values(), strict=True):
            columns = self.arrange(values).get_columns()
            filled = filled.with_columns(
                column.alias(name) for column, name in zip(columns, names, strict=True)
            )
        return filled

    def _expand(self, timeline: Timeline) -> None:
        import polars as pl

        super()._expand(timeline)
        rows = pl.Series(timeline.origins)
        rows = rows.set(pl.Series(timeline.inserted), None)
        self._data = self._data.select(pl.all().gather(rows))
        roles = (timeline.time, timeline.id)
        columns = {role.position: role.of(self._frame) for role in roles if role is not None}
        self._data = self._replace(columns)

    def _replace(self, columns: dict[int, pd.Series[Any]]) -> Any:
        import polars as pl
        import pyarrow as pa

        schema = self._data.schema
        new = []
        for position, series in columns.items():
            name = str(self._frame.columns[position])
            cells = pl.Series(name, pa.chunked_array(pa.array(series)))
            new.append(cells.cast(schema[name]))
        return self._data.with_columns(new)


def _arrow_view(data: pl.DataFrame) -> pd.DataFrame:
    """Show the columns that can be filled or order the rows; nested and exotic ones are left."""
    import polars as pl

    columns: dict[str, pd.Series[Any]] = {}
    for series in data.get_columns():
        dtype = series.dtype
        if dtype in (pl.Categorical, pl.Enum):
            series = series.cast(pl.String)
        elif dtype in (pl.Int128, pl.UInt128) or not (
            dtype.is_numeric() or dtype in (pl.String, pl.Boolean, pl.Date, pl.Datetime)
        ):
            continue
        columns[series.name] = pd.Series(pd.arrays.ArrowExtensionArray(series.to_arrow()))
    return pd.DataFrame(columns, index=pd.RangeIndex(data.height))


def plain(data: Any) -> Any:
    """Lists as arrays; refuse what would lose something on the way: masks, names that repeat."""
    if isinstance(data, pd.DataFrame):
        unique_names(data)
    return _as_array(data) if isinstance(data, (list, tuple, np.ma.MaskedArray)) else data


def _as_array(data: Any) -> NDArray[Any]:
    if isinstance(data, np.ma.MaskedArray):
        raise ValueError("expected a plain array, found a masked one; pass it as .filled(np.nan)")
    if isinstance(data, (pd.Series, dict, str)):
        raise ValueError(f"expected a table, found a {type(data).__name__}; pass a DataFrame")
    try:
        array = np.asarray(data)
        if array.dtype == object and not isinstance(data, np.ndarray):
            array = array.astype(np.float64)  # lists with None in them
    except (TypeError, ValueError) as error:
        raise ValueError(f"expected rows of numbers, all of one length: {error}") from error
    if array.ndim not in (2, 3):
        raise ValueError(
            f"expected an array of steps × variates or windows × steps × variates, found shape "
            f"{array.shape}; reshape one series to (-1, 1)"
        )
    return array


def _to_fill(known: FloatArray, values: FloatArray) -> BoolArray:
    return np.isnan(known) & ~np.isnan(values)
