import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from mdtim.panel import Panel, SeriesMoments, Surroundings, gap_lengths


def panel_of(values, offsets):
    variates = tuple(f"x{v}" for v in range(values.shape[1]))
    return Panel(values, np.asarray(offsets), variates)


@st.composite
def observed_and_offsets(draw):
    rows = draw(st.integers(0, 12))
    observed = draw(hnp.arrays(bool, (rows, draw(st.integers(1, 3)))))
    inner = draw(st.lists(st.integers(0, rows), max_size=3).map(sorted))
    return observed, np.array([0, *inner, rows])


def test_observed_is_true_exactly_where_a_value_is_known():
    panel = panel_of(np.array([[1.0, np.nan], [0.0, -1.0]]), [0, 2])
    assert panel.observed.tolist() == [[True, False], [True, True]]


def test_rows_know_their_series_even_next_to_an_empty_one():
    panel = panel_of(np.zeros((5, 1)), [0, 2, 2, 5])
    assert panel.num_series == 3
    assert panel.lengths.tolist() == [2, 0, 3]
    assert panel.series_of_rows().tolist() == [0, 0, 2, 2, 2]


@pytest.mark.parametrize(
    ("values", "offsets"),
    [
        (np.zeros((3, 1), dtype=np.float32), [0, 3]),
        (np.zeros(3).reshape(3, 1, 1), [0, 3]),
        (np.zeros((3, 1)), [0, 2]),
        (np.zeros((3, 1)), [1, 3]),
        (np.zeros((3, 1)), [0, 2, 1, 3]),
    ],
)
def test_a_panel_that_contradicts_itself_is_refused(values, offsets):
    with pytest.raises(AssertionError):
        panel_of(values, offsets)


def test_a_gap_ends_where_its_series_ends():
    observed = np.array([[1], [0], [0], [1], [0]], dtype=bool)
    rows, variates, lengths = gap_lengths(observed, np.array([0, 2, 5]))
    assert list(zip(rows, variates, lengths, strict=True)) == [(1, 0, 1), (2, 0, 1), (4, 0, 1)]


@given(observed_and_offsets())
def test_gaps_cover_every_missing_cell_once_and_cannot_be_extended(case):
    observed, offsets = case
    series = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    covered = np.zeros(observed.shape, dtype=int)
    for row, variate, length in zip(*gap_lengths(observed, offsets), strict=True):
        covered[row : row + length, variate] += 1
        assert len(set(series[row : row + length])) == 1
        for beyond in (row - 1, row + length):
            if 0 <= beyond < len(observed) and series[beyond] == series[row]:
                assert observed[beyond, variate]
    assert np.array_equal(covered, ~observed)


def test_a_row_has_the_same_key_in_any_table_it_is_in():
    whole = Panel(np.zeros((10, 1)), np.array([0, 6, 10]), ("x",), names=("a", "b"))
    other = Panel(np.zeros((4, 1)), np.array([0, 4]), ("x",), names=("b",))
    nowhere = np.zeros((1, 1))
    unknown = SeriesMoments(nowhere.astype(int), nowhere, nowhere)
    around = Surroundings(
        np.array([2]), nowhere.astype(int), nowhere, nowhere.astype(int), nowhere, unknown
    )
    cut = Panel(np.zeros((3, 1)), np.array([0, 3]), ("x",), names=("a",), surroundings=around)
    assert np.array_equal(whole.row_keys()[6:], other.row_keys())
    assert np.array_equal(whole.row_keys()[2:5], cut.row_keys())
    assert len(set(whole.row_keys())) == 10
