"""Parameters of the estimator: what would be misread, or fail far from here, is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np


def check_parameters(given: Mapping[str, Any]) -> None:
    """Look at an estimator's parameters, by their names.

    Raises
    ------
    ValueError
        If one of them cannot be meant.
    """
    if isinstance(given["columns"], str):
        raise ValueError(f"columns is a list of names, got {given['columns']!r}; put it in a list")
    placeholders = given["missing_values"]
    if placeholders is None or isinstance(placeholders, (str, int, float, np.number)):
        raise ValueError(
            f"missing_values is a list of what means missing, got {placeholders!r}; "
            "put it in a list"
        )
    if odd := [value for value in placeholders if not _is_number(value)]:
        raise ValueError(f"missing_values are numbers, got {odd[0]!r}; write it as a number")
    share, minutes = given["validation_share"], given["max_minutes"]
    if not _is_number(share) or not 0 < share < 1:
        raise ValueError(f"validation_share lies between 0 and 1, got {share}; 0.1 is usual")
    if minutes is not None and not (_is_number(minutes) and minutes > 0):
        raise ValueError(f"max_minutes must be positive, got {minutes}; None: no limit")
    if not (given["window"] == "auto" or _is_whole(given["window"], least=1)):
        raise ValueError(f'window must be "auto" or a positive whole number: {given["window"]!r}')
    for name, least in {"seed": 0, "max_steps": 0, "checkpoint_every": 1}.items():
        is_left_out = name == "max_steps" and given[name] is None
        if not is_left_out and not _is_whole(given[name], least):
            raise ValueError(f"{name} must be a whole number from {least} on, got {given[name]!r}")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, np.number)) and not isinstance(value, bool)


def _is_whole(value: Any, least: int) -> bool:
    return bool(_is_number(value) and value % 1 == 0 and value >= least)
