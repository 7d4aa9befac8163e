"""What a streamed training is cut into: so many steps as were asked for, with a validation after each piece."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deepbasis import DeepBasisRegressor
from deepbasis.planning import make_plan
from deepbasis.recipes import RECIPES, stream_epochs_for

DEFAULT = RECIPES["default"]


@given(
    rows=st.integers(2, 10**12),
    batch_size=st.integers(1, 10**5),
    passes=st.none() | st.integers(1, 50),
    max_steps=st.none() | st.integers(1, 10**7),
    recipe=st.sampled_from(list(RECIPES)),
)
@settings(max_examples=300, deadline=None)
def test_steps_are_bounded_and_an_epoch_is_a_pass_at_most(rows, batch_size, passes, max_steps, recipe):
    epochs, epoch_rows = stream_epochs_for(RECIPES[recipe], rows, batch_size, False, passes, max_steps)
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
    epochs, epoch_rows = stream_epochs_for(DEFAULT, 50_000_000, 512, False, None, None)
    assert (epochs, epoch_rows) == (20, 1_000 * 512)
    epochs, epoch_rows = stream_epochs_for(DEFAULT, 50_000_000, 512, False, None, 300)
    assert (epochs, epoch_rows) == (6, 50 * 512)
    epochs, epoch_rows = stream_epochs_for(DEFAULT, 50_000_000, 512, False, 2, None)
    assert epochs * epoch_rows == pytest.approx(100_000_000, rel=0.01)


@pytest.mark.parametrize("rows", [100, 5_000, 60_000])
def test_a_small_table_takes_the_steps_that_it_takes_in_memory(rows):
    model = DeepBasisRegressor(device="cpu")
    streamed, resident = make_plan(model, rows, streamed=True), make_plan(model, rows)
    steps = [plan.settings.epochs * -(-plan.epoch_rows // plan.settings.batch_size) for plan in (streamed, resident)]
    assert steps[0] == pytest.approx(steps[1], rel=0.1)
    assert streamed.settings.batch_size == resident.settings.batch_size
    assert streamed.settings.learning_rate == resident.settings.learning_rate


def test_an_exact_step_is_a_pass():
    assert stream_epochs_for(DEFAULT, 10**6, 512, True, None, None) == (DEFAULT.exact_steps, 10**6)
    assert stream_epochs_for(DEFAULT, 10**6, 512, True, 7, None) == (7, 10**6)
    assert stream_epochs_for(DEFAULT, 10**6, 512, True, None, 5) == (5, 10**6)


def test_in_memory_steps_are_bounded_by_whole_passes():
    model = DeepBasisRegressor(device="cpu", batch_size=100)
    assert make_plan(model, 10_000, max_steps=350).settings.epochs == 3
    assert make_plan(model, 10_000, max_steps=1).settings.epochs == 1
    assert make_plan(DeepBasisRegressor(objective="mml", device="cpu"), 10_000, max_steps=9).settings.epochs == 9


@pytest.mark.parametrize(
    ("rows", "batch_size", "steps"),
    [
        (200, 200, 400),
        (640, 128, 1_000),
        (2_048, 128, 2_400),
        (4_000, 256, 2_400),
        (9_000, 512, 2_700),
        (10**6, 512, 19_540),
    ],
)
def test_batches_and_steps_grow_with_the_table(rows, batch_size, steps):
    plan = make_plan(DeepBasisRegressor(device="cpu"), rows)
    assert plan.settings.batch_size == batch_size
    assert plan.settings.epochs * -(-rows // batch_size) == pytest.approx(steps, rel=0.01)
