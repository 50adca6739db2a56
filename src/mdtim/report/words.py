"""Numbers for people to read, and a sentence for every figure: what it shows, for any reader."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mdtim.evaluation import ColumnScore, Evaluation, MethodScore
from mdtim.report.about import AboutFacts
from mdtim.report.summary import ChartFacts, GapFacts, Summary, TableFacts

METHODS = {
    "mdtim": "mdtim",
    "mean": "mean",
    "locf": "last observation",
    "linear": "linear interpolation",
}
"""Names of the methods, as people know them."""
MAX_NAMES = 12
"""Columns that a sentence names."""


def number(value: float | None, decimals: int | None = None) -> str:
    """Four figures; of a column of rounded values no more than two decimals beyond its own.

    Parameters
    ----------
    decimals : of the column's values; None where they are not rounded

    Examples
    --------
    >>> [number(x) for x in (0.0, 1234567.8, 12.34567, -0.5, 1e-9, None)]
    ['0', '1,234,568', '12.35', '−0.5', '1e−09', '–']
    >>> [number(x, 1) for x in (1e-9, -1e-9, 0.06525, 12.34567, 1234567.8)]
    ['0', '0', '0.065', '12.35', '1,234,568']
    """
    if value is None:
        return "–"
    if decimals is not None:
        value = round(value, decimals + 2) or 0.0  # never a negative zero
    size = math.floor(math.log10(abs(value))) if value else 0
    if -5 < size < 9:
        text = f"{value:,.{max(3 - size, 0)}f}"
        text = text.rstrip("0").rstrip(".") if "." in text else text
    else:
        text = f"{value:.4g}"
    return text.replace("-", "−")


def decimals(value: float | None) -> str:
    """Three decimals, for errors that are compared down a column."""
    return "–" if value is None else f"{value:.3f}".replace("-", "−")


def count(amount: int, one: str, many: str | None = None) -> str:
    """Count things.

    Examples
    --------
    >>> count(1, "gap"), count(1200, "gap"), count(2, "series", "series")
    ('1 gap', '1,200 gaps', '2 series')
    """
    return f"{amount:,} {one if amount == 1 else many or one + 's'}"


def percent(share: float | None) -> str:
    """Percent with one decimal; what is not nothing or all does not look so.

    Examples
    --------
    >>> [percent(x) for x in (0.0, 0.0001, 0.123, 0.9999, 1.0, None)]
    ['0.0 %', '< 0.1 %', '12.3 %', '> 99.9 %', '100.0 %', '–']
    """
    if share is None:
        return "–"
    if 0 < share < 0.001:
        return "< 0.1 %"
    return "> 99.9 %" if 0.999 < share < 1 else f"{100 * share:.1f} %"


def duration(seconds: float) -> str:
    """Length of a step.

    Examples
    --------
    >>> duration(3600), duration(600), duration(172800)
    ('1 hour', '10 minutes', '2 days')
    """
    for size, unit in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= size:
            return f"{number(seconds / size)} {unit}{'' if seconds == size else 's'}"
    return f"{number(seconds)} second{'' if seconds == 1 else 's'}"


def length_range(shortest: int, longest: int) -> str:
    """Lengths of a group of gaps, as in '3–4'."""
    return f"{shortest:,}" if shortest == longest else f"{shortest:,}–{longest:,}"


def shorten(name: str, most: int = 24) -> str:
    """Cut a long name; the tables hold it whole."""
    return name if len(name) <= most else name[: most - 1] + "…"


def page_title(about: AboutFacts) -> str:
    """Say what the page is, the table first: the tab of a browser cuts what is long."""
    return "Filled gaps" if about.name is None else f"{about.name}: filled gaps"


def origin(about: AboutFacts) -> str:
    """What filled the table, and how well on cells that were held out to tell."""
    parts = []
    if about.window is not None:
        parts.append(f"window of {count(about.window, 'step')}")
    if about.trained is not None:
        size = ""
        if about.weights is not None:
            size = f"network of {about.weights / 1e6:.1f} million weights, "
        parts.append(size + about.trained)
    if about.validation_mae is not None and about.linear_mae is not None:
        parts.append(
            f"error on held-out cells {decimals(about.validation_mae)} std, linear interpolation "
            f"{decimals(about.linear_mae)}"
        )
    text = " · ".join([*parts, f"mdtim {about.version}"])
    return text[0].upper() + text[1:] if parts else text


def title(facts: ChartFacts | GapFacts) -> str:
    """Column, and series where there are several."""
    return facts.column if facts.series is None else f"{facts.column}, series {facts.series}"


def subtitle(table: TableFacts) -> str:
    """What kind of table it is."""
    parts = [count(table.steps, "step") + " × " + count(table.variates, "variate")]
    if table.skipped:
        parts.append(f"{count(table.skipped, 'step')} without a row")
    if table.series > 1:
        parts.append(count(table.series, "series", "series"))
    if table.start is not None:
        parts.append(f"{table.start} to {table.end}")
    if table.step_seconds:
        parts.append(f"one step is {duration(table.step_seconds)}")
    return " · ".join(parts)


def describe_map(summary: Summary) -> str:
    """Say what the map of the missing shows."""
    whole = [facts for facts in summary.columns if facts.missing]
    worst, rest = whole[0], len(summary.columns) - len(whole)
    text = ""
    if worst.column not in summary.table.empty:
        text = f"{worst.column} lacks the most, {percent(worst.share)} of its steps."
    text = f"{text} {describe_empty(summary)}".strip()
    if rest:
        verb = "lacks" if rest == 1 else "lack"
        text += f" {count(rest, 'column')} of {len(summary.columns):,} {verb} nothing."
    return text


def describe_empty(summary: Summary) -> str:
    """Name the columns that were never observed; nothing where there are none."""
    names = summary.table.empty
    if not names:
        return ""
    listed = ", ".join(names[:MAX_NAMES])
    if len(names) > MAX_NAMES:
        listed += f" and {len(names) - MAX_NAMES:,} further columns"
    verbs = "was never observed and is" if len(names) == 1 else "were never observed and are"
    return f"{listed} {verbs} left missing."


def describe_lengths(summary: Summary) -> str:
    """Say what the lengths of the gaps show."""
    table, single = summary.table, summary.lengths[0]
    text = f"{count(table.gaps, 'gap')}, the longest {count(table.longest_gap, 'step')}."
    if single.gaps:
        return text + f" {percent(single.gaps / table.gaps)} of them are single steps."
    return text + " Not one is a single step."


def describe_chart(facts: ChartFacts) -> str:
    """Say what a chart of a column shows."""
    text = (
        f"{facts.missing:,} of {count(facts.steps, 'step')} missing in {count(facts.gaps, 'gap')}"
    )
    if not facts.filled:
        return text + "; left missing."
    low, high = (number(value, facts.decimals) for value in (facts.lowest, facts.highest))
    text += f", filled with {low if low == high else f'values from {low} to {high}'}."
    if facts.band90 is not None:
        text += f" The 90 % band is on average {number(facts.band90, facts.decimals)} wide,"
        text += f" the 50 % band {number(facts.band50, facts.decimals)}."
    return text


def describe_calibration(evaluation: Evaluation) -> str:
    """Say how the coverage of the intervals compares with what they promise."""
    worst = max(evaluation.calibration, key=lambda point: abs(point.covered - point.level))
    by_level = {point.level: point.covered for point in evaluation.calibration}
    return (
        f"The 50 % band holds {percent(by_level[0.5])} of the hidden values and the 90 % band "
        f"{percent(by_level[0.9])}. The largest difference is at the {100 * worst.level:.0f} % "
        f"band, which holds {percent(worst.covered)}."
    )


def describe_errors(evaluation: Evaluation) -> str:
    """Say how the error changes from the shortest gaps to the longest."""
    first, last = evaluation.gap_lengths[0], evaluation.gap_lengths[-1]
    texts = []
    for group in dict.fromkeys((first, last)):
        model, best = group.rows[0], best_simple(group.rows)
        steps = length_range(group.shortest, group.longest)
        texts.append(
            f"in gaps of {steps} step{'' if group.longest == 1 else 's'} the mean absolute error "
            f"is {decimals(model.mae)}, that of {METHODS[best.method]} {decimals(best.mae)}"
        )
    text = "; ".join(texts) + "."
    return text[0].upper() + text[1:]


def describe_columns(evaluation: Evaluation) -> str:
    """Name the columns in which the model is not better than linear interpolation."""
    worse = [facts for facts in evaluation.columns if not beats_linear(facts)]
    if not worse:
        return "In every column the mean absolute error is below that of linear interpolation."
    listed = ", ".join(facts.column for facts in worse[:MAX_NAMES])
    if len(worse) > MAX_NAMES:
        listed += f" and {len(worse) - MAX_NAMES:,} more"
    return (
        f"In {len(worse):,} of {count(len(evaluation.columns), 'column')} mdtim is not better than "
        f"linear interpolation by its mean absolute error: {listed}."
    )


def beats_linear(facts: ColumnScore) -> bool:
    """Whether the model's mean absolute error is below that of linear interpolation."""
    errors = {row.method: row.mae for row in facts.rows}
    return errors["mdtim"] < errors["linear"]


def best_simple(rows: Sequence[MethodScore]) -> MethodScore:
    """Return the scores of the simple method with the least mean absolute error."""
    return min(rows[1:], key=lambda row: row.mae)
