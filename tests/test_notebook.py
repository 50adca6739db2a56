"""What a notebook shows, and figures of matplotlib."""

from __future__ import annotations

import sys
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest

from conftest import tiny_config
from mdtim import MDTIMImputer
from report_cases import HOSTILE, filled, holes, panel_of_three, values_of_any_size


def test_an_imputation_shows_its_numbers_and_its_longest_gap() -> None:
    frame = holes(100, {"a": [(10, 1), (30, 4)], HOSTILE: [(50, 9)]})
    html = filled(frame)._repr_html_()
    tree = ElementTree.fromstring(html)  # well-formed, so nothing in it is unescaped
    text = "".join(tree.itertext())
    assert "100 steps × 2 variates" in text
    assert "14 (7.0 %)" in text
    assert "3, the longest 9 steps" in text
    assert f"{HOSTILE}: 9 steps, 2024-03-03 02:00 to 2024-03-03 10:00" in text
    drawn = [element.tag for element in tree.iter()]
    assert (drawn.count("svg"), drawn.count("polygon"), drawn.count("script")) == (1, 2, 0)


@pytest.mark.parametrize("length", [1, 2, 3])
def test_a_series_of_few_steps_has_a_picture(length: int) -> None:
    frame = pd.DataFrame({"a": [1.0] * length, "b": [2.0] * (length - 1) + [np.nan]})
    assert "<svg" in filled(frame)._repr_html_()


@pytest.mark.parametrize("width", [0.0, 1.0, 1e305])
def test_the_picture_has_a_place_for_values_of_any_size(width: float) -> None:
    for name in values_of_any_size():
        html = filled(values_of_any_size()[[name]], width)._repr_html_()
        tree = ElementTree.fromstring(html)
        for element in tree.iter():
            for point in element.get("points", "").split():
                x, y = map(float, point.split(","))
                assert 0 <= x <= 460
                assert 0 <= y <= 120


def test_an_imputation_without_a_filled_gap_has_no_picture() -> None:
    assert "<svg" not in filled(holes(50, {"a": []}))._repr_html_()
    assert "<svg" not in filled(holes(50, {"a": [(0, 50)], "b": []}), left=(0,))._repr_html_()


@pytest.mark.filterwarnings("ignore::mdtim.doubts.ImputationWarning")
def test_a_fitted_imputer_shows_its_score_above_its_parameters(gappy: np.ndarray) -> None:
    imputer = MDTIMImputer(window=24, preset=tiny_config(), progress=False)
    before = imputer._repr_html_()
    assert "held-out" not in before
    imputer.fit(gappy)
    report = imputer.report_
    for html in (imputer._repr_html_(), imputer._repr_mimebundle_()["text/html"]):
        assert "24 steps" in html
        assert f"{report.validation_mae:.3f}" in html
        assert f"{report.linear_mae:.3f}" in html
        assert "sk-top-container" in html


def test_an_imputer_that_had_nothing_to_learn_can_be_shown() -> None:
    html = MDTIMImputer(window=4, progress=False).fit(np.ones((20, 2)))._repr_html_()
    assert "no column varies" in html


# -- matplotlib -----------------------------------------------------------------------------


def test_a_plot_has_an_axis_for_every_column_with_its_own_values() -> None:
    frame = holes(60, {"a": [(20, 3)], "b": [(10, 5)], "c": []})
    imputation = filled(frame)
    had_pyplot = "matplotlib.pyplot" in sys.modules  # by another test
    figure = imputation.plot()
    assert [axis.get_ylabel() for axis in figure.axes] == ["b", "a", "c"]
    lines = {line.get_label(): line for line in figure.axes[1].get_lines()}
    known = ~np.isnan(np.asarray(lines["observed"].get_ydata(), dtype=float))
    times = pd.DatetimeIndex(np.asarray(lines["observed"].get_xdata())[known])
    assert times.equals(pd.DatetimeIndex(frame.index[frame["a"].notna()]))
    assert 2.1 in np.asarray(lines["filled"].get_ydata())
    figure.canvas.draw()
    assert ("matplotlib.pyplot" in sys.modules) == had_pyplot


def test_columns_and_series_of_a_plot_can_be_chosen() -> None:
    imputation = panel_of_three()
    assert imputation.plot().get_suptitle() == "series x"
    assert imputation.plot(["a"], series="y").get_suptitle() == "series y"
    with pytest.raises(ValueError, match=r"no series 'w'.*'x', 'y', 'z'"):
        imputation.plot(series="w")
    with pytest.raises(ValueError, match=r"no column \['nope'\] to plot; the columns are \['a'\]"):
        imputation.plot(["nope"])
    with pytest.raises(ValueError, match="empty list"):
        imputation.plot([])


@pytest.mark.parametrize("name", ["$x$", HOSTILE])
def test_a_name_is_written_as_it_is(name: str) -> None:
    figure = filled(holes(60, {name: [(20, 3)]})).plot()
    figure.canvas.draw()
    assert figure.axes[0].get_ylabel() == name


def test_without_matplotlib_plot_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install 'mdtim\[plot\]'"):
        filled(holes(60, {"a": [(20, 3)]})).plot()
