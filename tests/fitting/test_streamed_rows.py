"""What a stream trains on: every row once, encoded as in memory, whoever reads it."""

import numpy as np
import pytest
import torch

from deepbasis.errors import InputError
from deepbasis.fitting.budget import Sizes
from deepbasis.fitting.spec import Spec
from deepbasis.tables.preprocessing import Preprocessor
from deepbasis.tables.reading import read_columns
from deepbasis.tables.scaler import TargetScaler
from support.streams import DROP, Workers, _Worker, encoder_of, epoch_of, frame, plan_of, sorted_rows, survey_of

pytestmark = pytest.mark.filterwarnings("ignore::deepbasis.errors.FitWarning")  # a few steps do not make a model


def test_an_epoch_is_every_training_row_once_encoded_as_in_memory(folder, whole, held):
    survey = survey_of(folder)
    inside = whole[~held].drop(columns=[*DROP, "price"])
    preprocessor, target = Preprocessor.fit(*read_columns(inside)), TargetScaler.fit(whole["price"][~held].to_numpy())
    assert survey.preprocessor(Spec()) == preprocessor
    expected = sorted_rows(preprocessor.transform(inside), target.transform(whole["price"][~held]))
    for epoch in (0, 3):
        batches = epoch_of(survey, epoch)
        assert {len(x) for x, _ in batches[:-1]} == {64}
        x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
        np.testing.assert_allclose(sorted_rows(x, y), expected, rtol=1e-12, atol=1e-12)


def test_the_validation_rows_are_the_held_out_ones_in_their_order(folder, whole, held):
    survey = survey_of(folder)
    validation = survey.validation(encoder_of(survey))
    outside = whole[held].drop(columns=[*DROP, "price"])
    np.testing.assert_array_equal(validation.x, survey.preprocessor(Spec()).transform(outside))
    np.testing.assert_allclose(validation.y, survey.statistics.target().transform(whole["price"][held]), rtol=1e-12)
    assert len(validation) == 210


@pytest.mark.parametrize("size", [2, 5, 40])
def test_any_number_of_workers_finds_the_same_and_shares_the_rows(folder, size):
    """40 of them are more than there are row groups: some have nothing to read."""
    alone = survey_of(folder)
    surveys = Workers(size).run(lambda team: survey_of(folder, team))
    validation = alone.validation(encoder_of(alone))
    for survey in surveys:
        assert survey.preprocessor(Spec()) == alone.preprocessor(Spec())
        assert survey.statistics.target().scale == pytest.approx(alone.statistics.target().scale, rel=1e-12)
        np.testing.assert_array_equal(survey.statistics.kept, alone.statistics.kept)
        assert torch.equal(survey.validation(encoder_of(alone)).x, validation.x)
    batches = [batch for rank in range(size) for batch in epoch_of(surveys[0], 0, _Worker(Workers(size), rank))]
    assert max(len(x) for x, _ in batches) <= -(-64 // size)
    shared = sorted_rows(*(torch.cat(parts) for parts in zip(*batches, strict=True)))
    whole = sorted_rows(*(torch.cat(parts) for parts in zip(*epoch_of(alone, 0), strict=True)))
    np.testing.assert_allclose(shared, whole, rtol=1e-9)


def test_an_error_of_one_worker_is_every_worker_s(tmp_path):
    for k in range(4):
        table = frame(100, k)
        if k == 2:
            table.loc[7, "price"] = np.inf
        table.to_parquet(tmp_path / f"part-{k}.parquet", index=False)
    for error in Workers(3).run(lambda team: survey_of(tmp_path, team)):
        assert isinstance(error, InputError)
        assert "target column 'price' of" in str(error)
        assert "part-2.parquet' has 1 value that is inf (infinite), in row 7 (counting from 0)" in str(error)


def test_the_order_is_the_seed_s_and_the_epoch_s(folder):
    survey = survey_of(folder)
    first = epoch_of(survey, 1)
    for one, other in zip(first, epoch_of(survey, 1), strict=True):
        assert torch.equal(one[0], other[0])
    for epoch, seed in ((2, 0), (1, 1)):
        assert not torch.equal(epoch_of(survey, epoch, seed=seed)[0][0], first[0][0])


def test_a_virtual_epoch_is_a_piece_of_a_pass(folder):
    survey = survey_of(folder)
    plan = plan_of(survey, 300, batch_size=10, epochs="auto")
    assert (plan.candidates[0].settings.epochs, plan.epoch_rows) == (6, 500)
    encoder = encoder_of(survey)
    with survey.stream(encoder, plan, Sizes(50, 100), 0) as stream:
        assert (stream.rows, stream.epoch_rows) == (survey.statistics.rows, 500)
        epochs = [list(stream.open_epoch(epoch)) for epoch in range(6)]
    assert [len(epoch) for epoch in epochs] == [50] * 6
    rows = np.concatenate([np.column_stack([x, y]) for epoch in epochs for x, y in epoch])
    first = rows[: survey.statistics.rows]
    assert len(np.unique(first, axis=0)) > 0.9 * len(first)  # nearly a pass: the buffer ends with the epoch


def test_weights_are_carried_along_and_zero_is_no_row(folder, whole, held):
    survey = survey_of(folder, weight="weight")
    keep = ~held & (whole["weight"] > 0).to_numpy()
    inside = whole[keep]
    assert survey.statistics.rows == keep.sum()
    assert survey.statistics.mass == inside["weight"].sum()
    names = [name for name in whole if name not in (*DROP, "price")]
    assert survey.preprocessor(Spec()) == Preprocessor.fit(*read_columns(inside[names]), inside["weight"].to_numpy())
    x, y, weight = (torch.cat(parts) for parts in zip(*epoch_of(survey, 0), strict=True))
    target = TargetScaler.fit(inside["price"].to_numpy(), inside["weight"].to_numpy())
    expected = sorted_rows(
        survey.preprocessor(Spec()).transform(inside[names]), target.transform(inside["price"]), inside["weight"]
    )
    np.testing.assert_allclose(sorted_rows(x, y, weight), expected, rtol=1e-9, atol=1e-12)
    validation = survey.validation(encoder_of(survey))
    assert validation.weight is not None
    assert sorted(validation.weight.tolist()) == sorted(whole["weight"][held & (whole["weight"] > 0)])


def test_a_group_is_on_one_side(folder, whole):
    survey = survey_of(folder, groups="shop", fraction=0.3)
    held = whole[whole["price"].isin(survey.held.y)]
    outside = set(held["shop"])
    assert 0 < len(outside) < 60
    assert len(held) == whole["shop"].isin(outside).sum()
    assert survey.statistics.rows == len(whole) - len(held)
