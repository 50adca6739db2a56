"""The settings of every compared system: one table, `settings.json`, with a source per row.

A row is for one data set, or with `*` for all that have no row of their own: the published tuning
covers ETTh and PhysioNet only, so Energy, Weather and Sine take ETTh's. The limits are the same
for all systems that train.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.resources import files
from typing import Any


@dataclass(frozen=True)
class Limits:
    """How long any system may train."""

    batch_size: int
    max_epochs: int
    max_steps: int
    max_minutes: float
    patience: int
    """Epochs without a better validation score before training ends."""

    def epochs(self, num_windows: int) -> int:
        """Whole epochs within both limits, at least one."""
        steps = -(-num_windows // self.batch_size)
        return max(1, min(self.max_epochs, self.max_steps // steps))


@dataclass(frozen=True)
class Settings:
    """What one system is run with on one data set."""

    method: str
    values: dict[str, Any]
    """The system's own, and what its adapter takes: among PyPOTS's `hide_training`, how often a
    training window is shown, hidden in another way each time (true is once, false whole windows),
    `validate_every`, the distance of the windows that are validated on, and `lr_drops`, shares of
    the training, each followed by a tenth of the rate."""
    limits: Limits
    source: str

    def plain(self) -> list[object]:
        """All that can change a result, ready for JSON."""
        return [self.method, self.values, vars(self.limits)]


def _document() -> dict[str, Any]:
    text = (files("mdtim.baselines") / "settings.json").read_text(encoding="utf-8")
    document: dict[str, Any] = json.loads(text)
    return document


def methods() -> list[str]:
    """Names of all compared systems, in the order of the table."""
    return list(dict.fromkeys(row["method"] for row in _document()["rows"]))


def settings_of(method: str, dataset: str, name: str = "default") -> Settings:
    """Settings of a system on a data set.

    Parameters
    ----------
    name : a row's name, with `+key=value` for each change of a value or a limit

    Examples
    --------
    >>> settings_of("saits", "etth", "default+max_minutes=5").limits.max_minutes
    5
    """
    document = _document()
    base, *changes = name.split("+")
    rows = [row for row in document["rows"] if row["method"] == method]
    if not rows:
        raise ValueError(f"unknown method {method!r}; there are mdtim, {', '.join(methods())}")
    fitting = [row for row in rows if row["name"] == base and row["data"] in (dataset, "*")]
    if not fitting:
        known = sorted({f"{row['name']} on {row['data']}" for row in rows})
        raise ValueError(
            f"{method} has no settings {base!r} for {dataset}; there are {', '.join(known)}"
        )
    row = max(fitting, key=lambda row: row["data"] == dataset)
    values, limits = dict(row["values"]), dict(document["limits"])
    for change in changes:
        key, _, text = change.partition("=")
        tree = limits if key in limits else values
        if key not in tree:
            raise ValueError(
                f"{method} has no setting {key!r}; there are {', '.join([*values, *limits])}"
            )
        tree[key] = _read(change, text, tree[key])
        if tree is limits and not tree[key] > 0:
            raise ValueError(f"{key} must be above 0, got {text}")
    return Settings(method, values, Limits(**limits), row["source"])


def _read(change: str, text: str, now: Any) -> Any:
    """A new value of a setting, of the kind of the one that it takes the place of."""
    try:
        value = json.loads(text.lower() if text in ("True", "False") else text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{change!r} has no value that can be read; write name=value") from error
    kinds: dict[type, tuple[type, ...]] = {bool: (bool, int), float: (float, int)}
    wanted = kinds.get(type(now), (type(now),))
    if change.startswith("max_minutes=") or (type(now) is int and now == 0):
        # An int only for how it is written.
        wanted = (int, float)
    if type(value) not in wanted:
        raise ValueError(f"{change!r} is not of the kind of {now!r}, which it would replace")
    return value
