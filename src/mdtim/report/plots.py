"""Pictures as inline SVG text: a gap with its bands, and the map of what is missing.

Colours come from the page's style sheet by class, so the pictures follow light and dark. All text
that comes from the table is escaped here, P points of a gap run along the step axis.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from html import escape
from typing import Any

import numpy as np

from mdtim.panel import BoolArray, FloatArray

_WIDTH, _HEIGHT = 480, 230
_RIGHT, _TOP, _BOTTOM = 454, 10, 204
_MAX_DOTS = 120
_MAP_WIDTH, _MAP_ROW, _MAP_LEVELS = 1000, 20, 10
MAX_MAP_COLUMNS = 60
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_TIME_STEPS = (
    *(f"{count}{unit}" for unit in "sm" for count in (1, 2, 5, 15, 30)),
    *("1h", "2h", "3h", "6h", "12h", "1D", "2D", "4D", "7D", "14D", "1M", "2M", "3M", "6M"),
    *(f"{count}Y" for count in (1, 2, 5, 10, 20, 50, 100)),
)


def format_number(number: float | None) -> str:
    """Four figures for people to read.

    Examples
    --------
    >>> [format_number(x) for x in (0.0, 1234567.8, 12.34567, -0.5, 1e-9, None)]
    ['0', '1,234,568', '12.35', '−0.5', '1e−09', '–']
    """
    if number is None:
        return "–"
    size = math.floor(math.log10(abs(number))) if number else 0
    if -5 < size < 9:
        text = f"{number:,.{max(3 - size, 0)}f}"
        text = text.rstrip("0").rstrip(".") if "." in text else text
    else:
        text = f"{number:.4g}"
    return text.replace("-", "−")


def locate_gap(gap: dict[str, Any]) -> str:
    """Length and place of a gap, as in '3 steps, step 7 to 9'."""
    steps = "1 step" if gap["length"] == 1 else f"{gap['length']:,} steps"
    span = gap["start"] if gap["length"] == 1 else f"{gap['start']} to {gap['end']}"
    return f"{steps}, {span}" if gap["timed"] else f"{steps}, step {span}"


def describe_gap(gap: dict[str, Any]) -> str:
    """Say in words what the picture of a gap shows."""
    inside = _inside(gap)
    text = f"Missing: {locate_gap(gap)}."
    filled = _known(_floats(gap["mean"])[inside])
    bounds = (_floats(gap["quantiles"][level])[inside] for level in ("95", "5"))
    widths = _known(np.subtract(*bounds))
    if len(filled) and len(widths):
        low, high, width = map(format_number, (filled.min(), filled.max(), widths.mean()))
        text += f" Filled with {low if low == high else f'values from {low} to {high}'}"
        text += f"; the 90 % band is {'' if len(filled) == 1 else 'on average '}{width} wide."
    observed = _floats(gap["observed"])
    first, last = np.flatnonzero(inside)[[0, -1]]
    for value in _known(observed[:first])[-1:].tolist():
        text += f" The last observed value before it is {format_number(value)}."
    for value in _known(observed[last:])[:1].tolist():
        text += f" The first observed value after it is {format_number(value)}."
    return text


def gap_svg(gap: dict[str, Any], number: int) -> str:
    """Draw one gap of a summary; `number` makes the ids of its texts unique on the page."""
    x = _floats(gap["positions"])
    observed, mean = _floats(gap["observed"]), _floats(gap["mean"])
    line = np.where(np.isnan(mean), observed, mean)
    # At an observed step the band closes, so that lines and bands meet what was observed.
    levels = {level: _floats(bound) for level, bound in gap["quantiles"].items()}
    bounds = {level: np.where(np.isnan(bound), line, bound) for level, bound in levels.items()}
    low, high = _value_range(np.concatenate([line, *bounds.values()]))
    left, value_axis = _value_axis(low, high)
    per_step = (_RIGHT - left) / max(x[-1] - x[0], 1.0)
    px = left + (x - x[0]) * per_step if len(x) > 1 else np.array([(left + _RIGHT) / 2])

    def height(values: FloatArray) -> FloatArray:
        return _BOTTOM - (values.clip(-1e300, 1e300) - low) / (high - low) * (_BOTTOM - _TOP)

    inside = px[_inside(gap)]
    begin, end = max(inside[0] - per_step / 2, left), min(inside[-1] + per_step / 2, _RIGHT)
    shade = f'<path class="shade" d="M{begin:.1f} {_TOP}H{end:.1f}V{_BOTTOM}H{begin:.1f}Z"/>'
    parts = [shade, value_axis, _step_axis(gap, x, px, left)]
    runs = list(_runs(~np.isnan(mean), ~np.isnan(line)))
    for lower, upper, band in (("5", "95", "b90"), ("25", "75", "b50")):
        for run in runs:
            edge = np.concatenate([px[run], px[run][::-1]])
            ends = np.concatenate([bounds[lower][run], bounds[upper][run][::-1]])
            parts.append(f'<path class="{band}" d="{_path(edge, height(ends))}Z"/>')
    seen = ~np.isnan(observed)
    for run in _runs(seen, seen):
        parts.append(f'<path class="obs" d="{_path(px[run], height(observed[run]))}"/>')
    for run in runs:
        parts.append(f'<path class="fill" d="{_path(px[run], height(line[run]))}"/>')
    parts.append(_dots("obs-dots", px, height(observed), seen))
    parts.append(_dots("fill-dots", px, height(mean), ~np.isnan(mean)))
    name = gap["column"] + ("" if gap["series"] is None else f", series {gap['series']}")
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-labelledby="t{number} d{number}"><title id="t{number}">Gap in {escape(name)}</title>'
        f'<desc id="d{number}">{escape(describe_gap(gap))}</desc>{"".join(parts)}</svg>'
    )


def map_svg(missing_map: dict[str, Any]) -> str:
    """Draw the share missing, columns below each other and time bins from left to right."""
    names = missing_map["columns"][:MAX_MAP_COLUMNS]
    columns = [name if len(name) <= 20 else name[:19] + "…" for name in names]
    left = 12 + 6.9 * max(len(name) for name in columns)
    # The smallest share still gets the first level: a single missing cell must not vanish.
    levels = np.ceil(np.array(missing_map["shares"]) * _MAP_LEVELS - 1e-9).astype(int)
    bottom, num_bins = len(columns) * _MAP_ROW, levels.shape[1]
    width = (_MAP_WIDTH - left) / num_bins
    cells: dict[int, list[str]] = {}
    parts = []
    for row, name in enumerate(columns):
        y = row * _MAP_ROW
        parts.append(
            f'<text x="{left - 8:.1f}" y="{y + 14}" text-anchor="end">{escape(name)}</text>'
            f'<rect class="row" x="{left:.1f}" y="{y + 2}" '
            f'width="{_MAP_WIDTH - left:.1f}" height="{_MAP_ROW - 4}"/>'
        )
        changes = np.flatnonzero(np.diff(levels[row])) + 1
        for begin, end in zip([0, *changes], [*changes, num_bins], strict=True):
            x, across = left + begin * width, (end - begin) * width
            path = f"M{x:.1f} {y + 2}h{across:.1f}v{_MAP_ROW - 4}h-{across:.1f}z"
            cells.setdefault(int(levels[row, begin]), []).append(path)
    cells.pop(0, None)
    for level, paths in sorted(cells.items()):
        opacity = f'fill-opacity="{0.1 + 0.9 * level / _MAP_LEVELS:.2f}"'
        parts.append(f'<path class="cells" {opacity} d="{"".join(paths)}"/>')
    parts.append(_map_axis(missing_map, left, bottom))
    return (
        f'<svg viewBox="0 0 {_MAP_WIDTH} {bottom + 22}" role="img" aria-labelledby="tmap dmap">'
        '<title id="tmap">Where cells are missing</title><desc id="dmap">One strip for each '
        f"column; the table of columns says the same in numbers.</desc>{''.join(parts)}</svg>"
    )


def _map_axis(missing_map: dict[str, Any], left: float, bottom: int) -> str:
    """Write times below the map, or mark where each series begins by a line through it."""
    several, parts, free = missing_map["several_series"], [], 0.0
    for at, label in missing_map["ticks"]:
        x = left + at * (_MAP_WIDTH - left)
        parts.append(f'<path class="tick" d="M{x:.1f} {0 if several else bottom}V{bottom + 4}"/>')
        anchor = "start" if several or at == 0 else "end" if x > _MAP_WIDTH - 60 else "middle"
        text = escape(label[:16])
        if x >= free:
            parts.append(
                f'<text x="{x:.1f}" y="{bottom + 17}" text-anchor="{anchor}">{text}</text>'
            )
            free = x + 110
    return "".join(parts)


def _floats(numbers: list[float | None]) -> FloatArray:
    return np.array(numbers, dtype=np.float64)  # None becomes NaN


def _known(numbers: FloatArray) -> FloatArray:
    return numbers[~np.isnan(numbers)]


def _inside(gap: dict[str, Any]) -> BoolArray:
    """(P,) True for the steps of the gap, False for its surroundings."""
    steps = _floats(gap["positions"]) - gap["position"]
    inside: BoolArray = (steps >= 0) & (steps < gap["length"])
    return inside


def _runs(wanted: BoolArray, known: BoolArray) -> Iterator[slice]:
    """Stretches of wanted points, each with the known point on either side of it."""
    edges = np.flatnonzero(np.diff(wanted, prepend=False, append=False))
    for begin, end in edges.reshape(-1, 2).tolist():
        before, after = known[max(begin - 1, 0)], known[min(end, len(known) - 1)]
        yield slice(max(begin - int(before), 0), end + int(after))


def _path(x: FloatArray, y: FloatArray) -> str:
    return "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in zip(x.tolist(), y.tolist(), strict=True))


def _dots(name: str, x: FloatArray, y: FloatArray, wanted: BoolArray) -> str:
    """Round caps on lines without length; in crowded pictures only where no line can be seen."""
    if len(x) > _MAX_DOTS:
        wanted = wanted & (np.convolve(wanted, [1, 0, 1], mode="same") == 0)
    path = "".join(f"M{a:.1f} {b:.1f}h0" for a, b in zip(x[wanted], y[wanted], strict=True))
    return f'<path class="{name}" d="{path}"/>' if path else ""


def _value_range(values: FloatArray) -> tuple[float, float]:
    known = _known(values).clip(-1e300, 1e300)
    low, high = float(known.min()), float(known.max())
    size = max(abs(low), abs(high))
    margin = 0.04 * (high - low) if high - low > 1e-9 * size else 0.05 * size
    return (low - margin, high + margin) if size > 1e-290 else (-1.0, 1.0)


def _nice_ticks(low: float, high: float, most: int) -> FloatArray:
    """Multiples of 1, 2 or 5 times a power of ten in the range, at most `most` of them."""
    power = 10.0 ** math.floor(math.log10((high - low) / most))
    step = next(power * n for n in (1, 2, 5, 10, 20) if (high - low) / (power * n) <= most)
    return step * np.arange(math.ceil(low / step), math.floor(high / step) + 1, dtype=np.float64)


def _value_axis(low: float, high: float) -> tuple[float, str]:
    """Left edge of the picture, as wide as the numbers need, and the axis."""
    ticks = _nice_ticks(low, high, 5)
    texts = [_tick_text(tick, float(ticks[1] - ticks[0])) for tick in ticks.tolist()]
    left = 6.4 * max(len(text) for text in texts) + 14
    parts = []
    for tick, text in zip(ticks.tolist(), texts, strict=True):
        y = _BOTTOM - (tick - low) / (high - low) * (_BOTTOM - _TOP)
        parts.append(
            f'<path class="grid" d="M{left:.1f} {y:.1f}H{_RIGHT}"/>'
            f'<text x="{left - 6:.1f}" y="{y + 4:.1f}" text-anchor="end">{text}</text>'
        )
    return left, "".join(parts)


def _tick_text(tick: float, step: float) -> str:
    """As many decimals as the step has, so that neighbouring ticks differ."""
    size = math.floor(math.log10(step) + 1e-6)
    if size > -6 and abs(tick) < 1e8:
        return f"{tick:,.{max(-size, 0)}f}".replace("-", "−")
    figures = 1 if tick == 0 else max(math.floor(math.log10(abs(tick))) - size + 1, 1)
    return f"{tick:.{min(figures, 15)}g}".replace("-", "−")


def _step_axis(gap: dict[str, Any], x: FloatArray, px: FloatArray, left: float) -> str:
    ticks = _time_ticks(gap["labels"], x) if gap["timed"] else []
    if not gap["timed"] and len(x) > 1:
        steps = _nice_ticks(float(x[0]), float(x[-1]), 6)
        ticks = [(step, f"{step:,.0f}") for step in steps.tolist() if step == int(step)]
    ticks = ticks if len(ticks) > 1 else [(float(x[0]), gap["labels"][0])]
    parts = [f'<path class="axis" d="M{left:.1f} {_BOTTOM}H{_RIGHT}"/>']
    for step, label in ticks:
        at = float(np.interp(step, x, px))
        parts.append(
            f'<path class="axis" d="M{at:.1f} {_BOTTOM}v4"/>'
            f'<text x="{at:.1f}" y="{_BOTTOM + 18}" '
            f'text-anchor="{"start" if len(label) > 9 else "middle"}">{escape(label)}</text>'
        )
    return "".join(parts)


def _time_ticks(labels: list[str], x: FloatArray) -> list[tuple[float, str]]:
    """Whole hours, days, months or years of the drawn span: (step, text)."""
    times = np.array([label.replace(" ", "T") for label in labels], dtype="M8[ns]")
    for count, unit in ((int(step[:-1]), step[-1]) for step in _TIME_STEPS):
        first, last = times[[0, -1]].astype(f"M8[{unit}]").astype(np.int64) // count
        if last - first <= 6:
            ticks = (np.arange(first, last + 1) * count).astype(f"M8[{unit}]").astype("M8[ns]")
            ticks = ticks[(ticks >= times[0]) & (ticks <= times[-1])]
            at = np.interp(ticks.astype(np.float64), times.astype(np.float64), x)
            return [(float(a), _time_text(t, unit)) for a, t in zip(at, ticks, strict=True)]
    return []


def _time_text(time: np.datetime64, unit: str) -> str:
    text = str(time.astype("M8[s]"))
    month, day = _MONTHS[int(text[5:7]) - 1], int(text[8:10])
    if unit in "MY":
        return text[:4] if unit == "Y" else f"{month} {text[:4]}"
    if unit == "D" or text.endswith("T00:00:00"):
        return f"{day} {month}"
    return text[11:19] if unit == "s" else text[11:16]
