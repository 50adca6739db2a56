from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mdtim.windows import (
    WindowIndex,
    blend_weights,
    covering_windows,
    every_window,
    halo,
    hold_out,
)

lengths = st.lists(st.integers(1, 60), min_size=1, max_size=5)


def offsets_of(sizes: list[int]) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(sizes)])


def test_window_counts_are_those_of_the_evaluation_protocol() -> None:
    assert len(every_window(np.array([0, 17_420 - 15_678]), 48)) == 1_695
    assert len(every_window(np.array([0, 19_735 - 17_761]), 48)) == 1_927
    assert len(every_window(np.array([0, 52_696 - 47_426]), 48)) == 5_223


@given(lengths, st.integers(1, 20))
def test_covering_windows_cover_every_row_and_never_cross_a_series(
    sizes: list[int], length: int
) -> None:
    offsets = offsets_of(sizes)
    index = covering_windows(offsets, length)
    covered = np.zeros(offsets[-1], dtype=int)
    series = np.repeat(np.arange(len(sizes)), sizes)
    for start, end in zip(index.starts, index.ends, strict=True):
        stop = min(start + length, end)
        covered[start:stop] += 1
        assert len(set(series[start:stop])) == 1
    assert covered.min() >= 1
    assert np.all(np.diff(index.starts) > 0)


@given(lengths, st.integers(1, 20), st.integers(0, 3))
def test_training_and_validation_share_no_row_unless_nothing_can_be_spared(
    sizes: list[int], length: int, seed: int
) -> None:
    offsets = offsets_of(sizes)
    everything = np.ones(offsets[-1], dtype=bool)
    training, validation = hold_out(everything, offsets, length, 0.2, np.random.default_rng(seed))
    assert len(training) > 0
    assert len(validation) > 0
    if set(validation.starts) <= set(training.starts):
        return  # too small: validation repeats the training windows
    rows = [
        {
            row
            for start, end in zip(part.starts, part.ends, strict=True)
            for row in range(start, min(start + length, end))
        }
        for part in (training, validation)
    ]
    assert not rows[0] & rows[1]


@pytest.mark.parametrize("seed", range(20))
def test_no_block_is_held_out_in_which_nothing_is_observed(seed: int) -> None:
    observed = np.arange(960) >= 600
    _, validation = hold_out(observed, offsets_of([960]), 48, 0.2, np.random.default_rng(seed))
    assert len(validation) == round(0.2 * 8)  # blocks of 48 with a row from 600 on
    for start, end in zip(validation.starts, validation.ends, strict=True):
        assert observed[start:end].any()


@given(
    windows=st.lists(st.tuples(st.integers(0, 30), st.integers(1, 20)), max_size=12),
    length=st.integers(1, 9),
)
def test_rows_are_counted_once_and_as_often_as_they_are_shown(
    windows: list[tuple[int, int]], length: int
) -> None:
    starts, sizes = (np.array([window[i] for window in windows], int) for i in (0, 1))
    index = WindowIndex(starts, starts + sizes, length)
    rows = [row for start, size in windows for row in range(start, start + min(size, length))]
    assert (index.num_rows, index.num_shown) == (len(set(rows)), len(rows))


def test_a_cell_counts_for_more_in_the_middle_of_a_window() -> None:
    weights = blend_weights(7)
    assert weights.tolist() == [1, 2, 3, 4, 3, 2, 1]


@given(st.integers(1, 90), st.integers(1, 20), st.data())
def test_a_widened_cut_has_the_windows_of_the_whole_series(
    total: int, length: int, data: st.DataObject
) -> None:
    begin = data.draw(st.integers(0, total - 1))
    end = data.draw(st.integers(begin + 1, total))
    low, high = (int(x[0]) for x in halo(*(np.array([x]) for x in (begin, end, total)), length))
    assert 0 <= low <= begin
    assert end <= high <= total
    whole = covering_windows(np.array([0, total]), length).starts
    cut = covering_windows(np.array([0, high - low]), length).starts + low
    assert set(cut) <= set(whole)
    seeing = whole[(whole < end) & (whole + length > begin)]
    assert set(seeing) <= set(cut)
    assert high - low <= end - begin + 3 * length  # and not much more
