from __future__ import annotations

import numpy as np
import pandas as pd
import torch

from mdtim.closed_form.stillness import NEAR, correction, movement
from mdtim.imputer import MDTIMImputer


def test_movement_is_the_span_of_the_visible_cells_nearby() -> None:
    generator = np.random.default_rng(0)
    values, visible = generator.normal(size=(2, 40, 3)), generator.random((2, 40, 3)) < 0.3
    visible[0, :30, 1] = False
    found = movement(torch.from_numpy(values), torch.from_numpy(visible)).numpy()
    for window, step, variate in np.ndindex(found.shape):
        near = slice(max(step - NEAR, 0), step + NEAR + 1)
        seen = values[window, near, variate][visible[window, near, variate]]
        assert found[window, step, variate] == (np.ptp(seen) if len(seen) else np.inf)


def test_only_what_is_too_little_to_tell_apart_is_moved_onto_the_line() -> None:
    line = torch.zeros(4, dtype=torch.float64)
    filled = torch.tensor([0.004, 0.004, 0.3, -0.004], dtype=torch.float64)
    moves = torch.tensor([0.0, 1.0, 0.0, torch.inf])
    moved = filled + correction(filled, line, moves, 0.02)
    assert abs(moved[0]) < 0.001
    assert torch.equal(moved[1:], filled[1:])


def test_a_column_that_spans_orders_of_magnitude_is_filled_at_its_small_end_too() -> None:
    day = np.arange(400)
    cases = np.round(2e6 / (1 + np.exp(-(day - 200) / 14)) + 0.3 * day + 3)
    frame = pd.DataFrame({"cases": cases, "tests": 12 * cases * (1 + 0.05 * np.sin(day / 5))})
    gaps = [10, 11, 25, 26, 27, 40, 55, 56, 220, 221, 300]
    truth = frame.loc[gaps, "cases"].to_numpy()
    frame.loc[gaps, "cases"] = np.nan
    filled = MDTIMImputer(device="cpu", progress=False).fit_transform(frame)
    error = np.abs(filled.loc[gaps, "cases"].to_numpy() - truth)
    assert (error[:8] < 3).all(), error  # it was up to 40, and below zero
