"""What a streamed training is cut into: so many steps as were asked for, with a validation after each piece."""

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deepbasis import DeepBasisRegressor, planning
from deepbasis.planning import make_plan
from deepbasis.recipes import RECIPES, batch_size_for, epochs_for, stream_epochs_for
from deepbasis.tables.preprocessing import Preprocessor
from deepbasis.tables.reading import read_columns

DEFAULT, PAPER = RECIPES["default"], RECIPES["paper"]


@given(
    rows=st.integers(2, 10**12),
    batch_size=st.integers(1, 10**5),
    passes=st.none() | st.integers(1, 50),
    max_steps=st.none() | st.integers(1, 10**7),
    recipe=st.sampled_from(list(RECIPES)),
    on_gpu=st.booleans(),
)
@settings(max_examples=300, deadline=None)
def test_steps_are_bounded_and_an_epoch_is_a_pass_at_most(rows, batch_size, passes, max_steps, recipe, on_gpu):
    epochs, epoch_rows = stream_epochs_for(RECIPES[recipe], rows, batch_size, False, on_gpu, passes, max_steps)
    steps = epochs * -(-epoch_rows // batch_size)
    a_pass = -(-rows // batch_size)
    assert epochs >= 1
    assert 1 <= epoch_rows <= rows
    assert epoch_rows == rows or epoch_rows % batch_size == 0
    if max_steps is not None:
        assert steps <= max_steps
    if max_steps is not None or passes is not None:
        bounds = [max_steps] * (max_steps is not None) + [(passes or 0) * a_pass] * (passes is not None)
        assert min(bounds) - max(epochs, a_pass - 1) <= steps <= min(bounds)


def test_fifty_million_rows_are_trained_on_for_a_bounded_number_of_steps_and_validated_often():
    epochs, epoch_rows = stream_epochs_for(DEFAULT, 50_000_000, 512, False, False, None, None)
    assert (epochs, epoch_rows) == (20, 1_000 * 512)
    epochs, epoch_rows = stream_epochs_for(DEFAULT, 50_000_000, 512, False, False, None, 300)
    assert (epochs, epoch_rows) == (6, 50 * 512)
    epochs, epoch_rows = stream_epochs_for(DEFAULT, 50_000_000, 512, False, False, 2, None)
    assert epochs * epoch_rows == pytest.approx(100_000_000, rel=0.01)


@pytest.mark.parametrize("rows", [100, 5_000, 60_000])
def test_a_small_table_takes_the_steps_that_it_takes_in_memory(rows):
    model = DeepBasisRegressor(device="cpu")
    streamed, resident = make_plan(model, rows, streamed=True), make_plan(model, rows)
    steps = [
        plan.settings.epochs * plan.settings.passes * -(-plan.epoch_rows // plan.settings.batch_size)
        for plan in (streamed, resident)
    ]
    assert steps[0] == pytest.approx(steps[1], rel=0.1)
    assert streamed.settings.batch_size == resident.settings.batch_size
    assert streamed.settings.learning_rate == resident.settings.learning_rate


def test_an_exact_step_is_a_pass():
    assert stream_epochs_for(DEFAULT, 10**6, 512, True, False, None, None) == (DEFAULT.exact_steps, 10**6)
    assert stream_epochs_for(DEFAULT, 10**6, 512, True, False, 7, None) == (7, 10**6)
    assert stream_epochs_for(DEFAULT, 10**6, 512, True, False, None, 5) == (5, 10**6)


def test_in_memory_steps_are_bounded_by_whole_passes():
    model = DeepBasisRegressor(device="cpu", batch_size=100)
    assert make_plan(model, 10_000, max_steps=350).settings.epochs == 3
    assert make_plan(model, 10_000, max_steps=1).settings.epochs == 1
    assert make_plan(DeepBasisRegressor(objective="mml", device="cpu"), 10_000, max_steps=9).settings.epochs == 9


@pytest.mark.parametrize(
    ("rows", "batch_size", "passes", "steps"),
    [
        (200, 200, 10, 2_000),
        (1_024, 1_024, 10, 2_000),
        (1_025, 512, 3, 2_000),
        (4_000, 512, 1, 2_700),
        (9_000, 512, 1, 2_700),
        (10**6, 512, 1, 19_540),
    ],
)
def test_batches_and_steps_grow_with_the_table(rows, batch_size, passes, steps):
    settings = make_plan(DeepBasisRegressor(device="cpu"), rows).settings
    assert (settings.batch_size, settings.passes) == (batch_size, passes)
    assert settings.epochs * passes * -(-rows // batch_size) == pytest.approx(steps, rel=0.01)


@pytest.mark.parametrize(
    "changes", [{"epochs": 7}, {"patience": 7}, {"objective": "mml"}, {"recipe": "paper"}, {"batch_size": 10}], ids=str
)
def test_an_epoch_is_a_pass_where_it_was_asked_for_or_has_many_steps(changes):
    assert make_plan(DeepBasisRegressor(device="cpu", **changes), 100).settings.passes == 1


@pytest.mark.parametrize("max_steps", [1, 7, 10, 25, 1_999])
def test_several_passes_an_epoch_are_never_more_steps_than_asked_for(max_steps):
    settings = make_plan(DeepBasisRegressor(device="cpu"), 100, max_steps=max_steps).settings
    assert max_steps - settings.passes < settings.epochs * settings.passes <= max_steps


@pytest.mark.parametrize(
    ("changes", "selection", "rates"),
    [
        ({"method": "sv-rbf", "objective": "mml"}, "last", (0.05, 0.5)),
        ({"method": "sv-rbf", "objective": "mml", "learning_rate": 1e-4}, "last", (1e-4, None)),
        ({"method": "sv-rbf", "objective": "mml", "recipe": "paper"}, "last", (1e-3, None)),
        ({"method": "sv-rbf"}, "crps", (3e-3, None)),
        ({"method": "dbk-silu", "objective": "mml"}, "crps", (3e-3, None)),
        ({"method": "sv-dkl", "objective": "mml"}, "crps", (3e-3, None)),
        ({}, "crps", (3e-3, None)),
        ({"learning_rate": 0.5}, "crps", (0.5, None)),
        ({"recipe": "paper"}, "nll", (1e-3, None)),
    ],
    ids=str,
)
def test_a_shallow_kernel_trained_exactly_takes_long_steps_and_all_of_them(changes, selection, rates):
    settings = make_plan(DeepBasisRegressor(device="cpu", **changes), 500).settings
    assert settings.selection == selection
    assert (settings.learning_rate, settings.kernel_learning_rate) == rates


# ---- before the network ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "rows", "changes", "embedding"),
    [
        (["numbers"] * 2, 2_001, {}, "fourier"),
        (["numbers"] * 3, 2_001, {}, "fourier"),
        (["numbers", "numbers", "constant"], 2_001, {}, "fourier"),
        (["numbers"] * 3, 2_001, {"method": "sv-dkl"}, "fourier"),
        (["numbers"] * 3, 2_000, {}, "none"),
        (["numbers"], 10**6, {}, "none"),
        (["numbers"] * 4, 10**6, {}, "none"),
        (["numbers", "words"], 10**6, {}, "none"),
        (["words"], 10**6, {}, "none"),
        (["numbers", "numbers", "constant word"], 10**6, {}, "fourier"),
        (["numbers", "holes"], 10**6, {}, "none"),
        (["holes"], 10**6, {}, "none"),
        (["numbers", "numbers", "holes"], 10**6, {}, "none"),
        (["numbers"] * 2, 10**6, {"recipe": "paper"}, "none"),
        (["numbers"] * 2, 10**6, {"method": "sv-rbf"}, "none"),
        (["numbers"] * 2, 10**6, {"embedding": "none"}, "none"),
        (["numbers"] * 4, 100, {"embedding": "periodic"}, "periodic"),
    ],
    ids=str,
)
def test_places_are_told_in_waves(columns, rows, changes, embedding):
    kinds = {
        "numbers": np.arange(6.0),
        "constant": np.ones(6),
        "words": np.array(list("abcabc"), dtype=object),
        "constant word": np.array(["a"] * 6, dtype=object),
        "holes": np.array([1.0, 2.0, 3.0, np.nan, 5.0, 6.0]),
    }
    table = Preprocessor.fit(*read_columns(pd.DataFrame({f"{name}{k}": kinds[name] for k, name in enumerate(columns)})))
    assert planning.embedding_of(DeepBasisRegressor(device="cpu", **changes), table, rows) == embedding


# ---- on a GPU --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "steps"),
    [
        (200, (2_000, 2_000)),
        (2_000, (2_000, 2_000)),
        (2_001, (2_700, 12_000)),  # no longer small
        (5_000, (2_700, 12_000)),
        (20_000, (6_000, 12_000)),
        (60_000, (17_700, 17_700)),
        (10**6, (19_540, 19_540)),
        (10**7, (97_660, 97_660)),  # five epochs at least
    ],
)
def test_a_gpu_takes_more_steps_where_the_table_is_not_small(rows, steps):
    batch_size = batch_size_for(DEFAULT, rows)
    a_pass = -(-rows // batch_size)
    found = [epochs_for(DEFAULT, rows, batch_size, False, on_gpu) * a_pass for on_gpu in (False, True)]
    assert found == pytest.approx(list(steps), rel=0.01)


def test_a_gpu_makes_no_difference_otherwise():
    """To the paper's recipe, to exact training, and to what a user asks for."""
    for rows in (500, 5_000, 10**5):
        batch_size = batch_size_for(PAPER, rows)
        assert epochs_for(PAPER, rows, batch_size, False, True) == epochs_for(PAPER, rows, batch_size, False)
        assert epochs_for(DEFAULT, rows, 512, True, True) == DEFAULT.exact_steps
    for passes, max_steps in ((3, None), (None, 700), (3, 700)):
        plans = [stream_epochs_for(DEFAULT, 20_000, 512, False, gpu, passes, max_steps) for gpu in (False, True)]
        assert plans[0] == plans[1]


def test_a_stream_on_a_gpu_takes_the_steps_of_a_table_in_memory():
    epochs, rows = stream_epochs_for(DEFAULT, 20_000, 512, False, True, None, None)
    assert epochs * -(-rows // 512) == pytest.approx(12_000, rel=0.01)
    epochs, rows = stream_epochs_for(DEFAULT, 20_000, 512, False, False, None, None)
    assert epochs * -(-rows // 512) == pytest.approx(6_000, rel=0.01)


def test_a_plan_knows_its_device(monkeypatch):
    monkeypatch.setattr(planning.devices, "named", torch.device)
    steps = {}
    for device in ("cpu", "cuda"):
        plan = make_plan(DeepBasisRegressor(device=device), 20_000)
        steps[device] = plan.settings.epochs * -(-20_000 // plan.settings.batch_size)
        assert plan.settings.compile == (device == "cuda")
    assert steps["cpu"] == pytest.approx(6_000, rel=0.01)
    assert steps["cuda"] == pytest.approx(12_000, rel=0.01)
