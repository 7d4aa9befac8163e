"""Panels of the experiments' figures: what is drawn is what was given."""

import numpy as np
import pytest

from deepbasis import plots
from deepbasis.errors import InputError
from deepbasis.paper import panels


@pytest.fixture
def ax():
    return plots.new_figure(4, 3).subplots()


def lines(ax):
    return {line.get_label(): line for line in ax.lines}


def test_a_curve_is_sorted_and_has_its_spread_around_it(ax):
    assert panels.curve(ax, [4, 1, 2], [3.0, 1.0, 2.0], [0.3, np.nan, 0.2], label="method") is ax
    np.testing.assert_array_equal(lines(ax)["method"].get_xydata(), [[1, 1], [2, 2], [4, 3]])
    (band,) = ax.collections
    corners = band.get_paths()[0].vertices
    for at, low, high in ((1, 1, 1), (2, 1.8, 2.2), (4, 2.7, 3.3)):  # no spread known: none drawn
        there = corners[corners[:, 0] == at, 1]
        assert (there.min(), there.max()) == pytest.approx((low, high))


def test_a_curve_with_error_bars(ax):
    panels.curve(ax, [1, 2], [1.0, 2.0], [0.5, 0.25], bars=True, label="method")
    (container,) = ax.containers
    bars = [segment[:, 1].tolist() for segment in container.lines[2][0].get_segments()]
    assert bars == [[0.5, 1.5], [1.75, 2.25]]


def test_paired_violins_stand_side_by_side_with_their_medians():
    ax = plots.new_figure(4, 3).subplots()
    groups = {
        "A": {"urban": [1.0, 2.0, 4.0], "rural": [5.0, 6.0, 9.0]},
        "B": {"urban": [3.0, 3.0], "rural": [1.0, 2.0]},
    }
    assert panels.paired_violins(ax, groups) is ax
    medians = {}
    for lines in ax.collections:
        if hasattr(lines, "get_segments"):
            medians |= {round(float(seg[:, 0].mean()), 6): float(seg[0, 1]) for seg in lines.get_segments()}
    assert medians == {-0.2: 2.0, 0.2: 6.0, 0.8: 3.0, 1.2: 1.5}
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["A", "B"]
    assert [c.get_label() for c in ax.collections if not c.get_label().startswith("_")] == ["urban", "rural"]
    with pytest.raises(InputError, match="no group"):
        panels.paired_violins(ax, {})
    with pytest.raises(InputError, match="3 kinds of values"):
        panels.paired_violins(ax, {"A": {"a": [1], "b": [1], "c": [1]}})


def test_a_map_shows_its_values_where_they_are_and_its_outline():
    ax = plots.new_figure(4, 3).subplots()
    values = np.array([[1.0, 2.0, np.nan], [4.0, 5.0, 6.0]])
    outline = [[-1.0, 59.0], [3.0, 61.0], [np.nan, np.nan], [0.0, 60.0]]
    assert panels.map_picture(ax, [0, 1, 2], [59.5, 60.5], values, low=1, high=5, outline=outline) is ax
    mesh = ax.collections[0]
    np.testing.assert_array_equal(np.ma.filled(mesh.get_array(), -9), [[1, 2, -9], [4, 5, 6]])
    assert mesh.get_clim() == (1, 5)
    np.testing.assert_array_equal(ax.lines[0].get_xydata(), outline)
    assert ax.get_aspect() == pytest.approx(2.0)  # 1 / cos 60°
    assert ax.get_xlim() == pytest.approx((-1.08, 3.08))
    with pytest.raises(InputError, match="a row for each lat"):
        panels.map_picture(ax, [0, 1], [59, 60], values, low=0, high=1)
