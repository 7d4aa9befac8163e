"""Figures: what is drawn is what was given, no window is opened, no global setting is changed."""

import io
import subprocess
import sys
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.colors import to_hex
from PIL import Image
from scipy.stats import norm

from deepbasis import plots
from deepbasis.errors import InputError


@pytest.fixture
def ax():
    return plots.new_figure(4, 3).subplots()


def lines(ax):
    return {line.get_label(): line for line in ax.lines}


def test_a_predictive_band_holds_the_mean_and_what_is_around_it(ax):
    x, mean, std = np.array([1.0, -1.0, 0.0]), np.array([3.0, 1.0, 2.0]), np.array([0.3, 0.1, 0.2])
    assert plots.predictive_band(ax, x, mean, std, width=2, label="model") is ax
    np.testing.assert_array_equal(lines(ax)["model: mean"].get_xydata(), [[-1, 1], [0, 2], [1, 3]])  # sorted by x
    (band,) = ax.collections
    corners = band.get_paths()[0].vertices
    for at, low, high in ((-1, 0.8, 1.2), (0, 1.6, 2.4), (1, 2.4, 3.6)):
        there = corners[corners[:, 0] == at, 1]
        assert (there.min(), there.max()) == pytest.approx((low, high))
    assert ax.get_xlim() == (-1, 1)


def test_the_oracle_is_drawn_thinner_than_the_prediction(ax):
    x = np.linspace(0, 1, 5)
    plots.predictive_band(ax, x, x, x + 1, data=(x[:2], x[:2]), oracle=(-x, 0 * x + 1))
    drawn = lines(ax)
    assert drawn["oracle: mean"].get_linewidth() < drawn["prediction: mean"].get_linewidth()
    np.testing.assert_array_equal(drawn["oracle: mean"].get_ydata(), -x)
    np.testing.assert_array_equal(drawn["oracle: mean ± 2 std"].get_ydata(), -x - 2)
    assert len(drawn["data"].get_xdata()) == 2


def test_a_kernel_is_shown_as_a_share_of_its_largest_value(ax):
    K = np.array([[4.0, -1.0], [-1.0, 2.0]])
    plots.kernel_heatmap(ax, [-1, 1], K)
    (picture,) = ax.images
    np.testing.assert_array_equal(picture.get_array(), K / 4)
    assert picture.get_clim() == (-1, 1)
    assert tuple(picture.get_extent()) == (-1, 1, -1, 1)
    plots.kernel_heatmap(ax, [-1, 1], 0 * K)  # nothing is divided by zero


def test_reliability_is_the_share_of_rows_by_their_probability(ax):
    rng = np.random.default_rng(0)
    p = rng.uniform(size=5_000)
    plots.reliability(ax, p, rng.uniform(size=5_000) < p**2, bins=5, label="too sure")
    told, share = ax.lines[1].get_data()
    np.testing.assert_allclose(told, np.arange(0.1, 1, 0.2), atol=0.02)
    np.testing.assert_allclose(share, told**2 + 0.2**2 / 12, atol=0.05)  # the mean of p^2 in a bin; chance: 0.016


def test_confusion_writes_per_cent_into_its_fields(ax):
    plots.confusion(ax, [[0.9, 0.1], [0.25, 0.75]], ["a", "$b"])
    assert [text.get_text() for text in ax.texts] == ["90", "10", "25", "75"]
    assert [text.get_text() for text in ax.get_yticklabels()] == ["a", r"\$b"]


def test_a_calibrated_prediction_lies_on_the_diagonal_and_within_chance(ax):
    rng = np.random.default_rng(0)
    plots.calibration_curve(ax, norm.cdf(rng.normal(size=4_000)), label="good")
    level, share = lines(ax)["good"].get_data()
    assert np.abs(level - share).max() < 1.63 / np.sqrt(4_000)  # Kolmogorov and Smirnov, 1 %
    assert (share[0], share[-1]) == (0, 1)
    plots.calibration_curve(ax, norm.cdf(3 * rng.normal(size=4_000)), label="too sure")
    level, share = lines(ax)["too sure"].get_data()
    assert share[10] > level[10] + 0.2  # far more targets below the 10 % quantile than 10 %


def test_a_history_marks_the_best_epoch_of_each_member(ax):
    member = {"train_loss": [3.0, 2.0, 1.0], "validation": [3.0, 1.5, np.nan]}
    other = {"train_loss": [3.0, 2.0], "validation": [1.0, 4.0]}
    plots.training_history(ax, [member, other])
    dots = [line.get_xydata()[0].tolist() for line in ax.lines if line.get_marker() == "o"]
    assert dots == [[2, 1.5], [1, 1.0]]
    labels = list(ax.get_legend_handles_labels()[1])
    assert labels == ["training loss", "validation score", "best epoch"]  # once each, however many members
    plots.training_history(ax, member)
    plots.training_history(ax, {"train_loss": [np.nan], "validation": [np.nan]})


@pytest.mark.parametrize(
    ("draw", "words"),
    [
        (lambda ax: plots.predictive_band(ax, [1, 2], [1, 2], [1]), "std has 1 entries but x has 2"),
        (lambda ax: plots.predictive_band(ax, [], [], []), "x must be a vector"),
        (lambda ax: plots.predictive_band(ax, [[1]], [1], [1]), "x must be a vector"),
        (lambda ax: plots.kernel_heatmap(ax, [1, 2], np.eye(3)), "K must have a row and a column for each x"),
        (lambda ax: plots.calibration_curve(ax, [0.5, 1.5]), "pit must lie between 0 and 1"),
        (lambda ax: plots.reliability(ax, [0.5, 0.5], [1], label="p"), "happened has 1 entries but p has 2"),
        (lambda ax: plots.training_history(ax, []), "history is empty"),
    ],
)
def test_arrays_that_cannot_be_drawn(ax, draw, words):
    with pytest.raises(InputError, match=words):
        draw(ax)


def test_the_same_drawing_becomes_the_same_png():
    first, second = (
        plots.png(plots.kernel_heatmap(plots.new_figure(4, 3).subplots(), [-1, 1], np.eye(2)).figure, 100)
        for _ in range(2)
    )
    assert first == second
    assert Image.open(io.BytesIO(first)).size == (400, 300)


def test_the_colours_stay_apart_for_the_colour_blind():
    """Luminance alone tells the three that the methods are drawn in apart."""

    def luminance(colour: str) -> float:
        channels = np.array([int(to_hex(colour)[k : k + 2], 16) for k in (1, 3, 5)]) / 255
        return float(channels**2.2 @ [0.2126, 0.7152, 0.0722])

    values = sorted(luminance(colour) for colour in (plots.INK, plots.BLUE, plots.VERMILLION, plots.ORANGE))
    assert np.diff(values).min() > 0.04


def test_matplotlib_is_imported_when_a_figure_is_made_and_pyplot_never():
    code = """
import sys
from xml.etree import ElementTree
from deepbasis import plots
assert "matplotlib" not in sys.modules and "torch" not in sys.modules
ax = plots.new_figure(1, 1).subplots()
plots.calibration_curve(ax, [0.5])
plots.png(ax.figure)
assert "matplotlib.pyplot" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_without_matplotlib_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(InputError, match=r"pip install 'deepbasis\[plots\]'"):
        plots.new_figure(1, 1)


def test_basis_functions_are_drawn_as_they_are_the_liveliest_last(ax):
    x = np.linspace(-1, 1, 5)
    phi = np.stack([3 * x, 0 * x + 7, -x], 1)
    plots.basis_functions(ax, x, phi)
    for line, expected in zip(ax.lines, (phi[:, 1], phi[:, 2], phi[:, 0]), strict=True):
        np.testing.assert_array_equal(line.get_ydata(), expected)
    plots.basis_functions(ax, x, phi[:, :1])
    with pytest.raises(InputError, match=r"phi must have a row for each x, \[5, r\], got \[3, 5\]"):
        plots.basis_functions(ax, x, phi.T)


def test_a_pit_histogram_has_shares_that_sum_to_one_and_the_band_of_chance(ax):
    plots.pit_histogram(ax, np.linspace(0, 1, 400), bins=4)
    assert [bar.get_height() for bar in ax.patches[:4]] == pytest.approx([0.25] * 4, abs=0.01)
    low, high = sorted({ax.patches[4].get_y(), ax.patches[4].get_y() + ax.patches[4].get_height()})
    assert (low + high) / 2 == pytest.approx(0.25)
    assert (high - low) / 2 == pytest.approx(1.96 * np.sqrt(0.25 * 0.75 / 400))


def test_residuals_are_in_standard_deviations(ax):
    plots.residuals(ax, [1.0, 2.0], [0.5, 2.0], [2.0, 0.0])
    np.testing.assert_allclose(ax.lines[0].get_xydata(), [[1, 2], [2, -1]])


def test_bars_stand_in_order_from_the_top(ax):
    plots.bars(ax, ["a", "$b$", "c" * 40], [3.0, 2.0, 1.0], [0.1, 0.2, 0.3])
    assert [bar.get_width() for bar in ax.patches] == [3, 2, 1]
    assert ax.get_ylim()[0] > ax.get_ylim()[1]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["a", r"\$b\$", "c" * 23 + "…"]


@pytest.mark.parametrize("dates", [False, True])
def test_an_effect_is_a_line_in_its_band(ax, dates):
    x, y = np.array([0.0, 86_400.0, 172_800.0]), np.array([1.0, 2.0, 1.0])
    plots.effect(ax, x, y, y - 1, y + 1, dates=dates)
    np.testing.assert_array_equal(ax.lines[0].get_ydata(), y)
    ax.figure.canvas.draw()
    assert len(ax.collections) == 1


def test_an_effect_of_categories_has_a_dot_for_each(ax):
    plots.effect(ax, [0.0, 1.0], [1.0, 2.0], [0.0, 1.5], [2.0, 2.5], labels=["red", "blue"])
    assert [label.get_text() for label in ax.get_xticklabels()] == ["red", "blue"]


def test_an_svg_is_the_same_twice_and_follows_light_and_dark():
    def drawn() -> bytes:
        figure = plots.new_figure(3, 2)
        plots.residuals(figure.subplots(), [1.0, 2.0], [0.5, 2.0], [2.0, 0.0])
        return plots.svg(figure)

    text = drawn().decode()
    assert drawn().decode() == text
    assert "prefers-color-scheme:dark" in text
    assert "stroke: #000000" not in text
    assert "stroke: var(--ink)" in text
    ElementTree.fromstring(text)
