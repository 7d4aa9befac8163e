"""Which epoch is kept, and when a member stops."""

import math

import pytest
import torch
from torch import Tensor

from deepbasis.engine.batches import Rows
from deepbasis.engine.checkpoint import HISTORY
from deepbasis.engine.training import train
from support.own import METHODS, OUTLOOK
from support.validation import score


def test_the_last_epoch_is_kept_if_that_is_wanted(lab):
    """Of these members it is not always the best; nor does any of them stop early."""
    settings = lab.settings("dbk-silu", epochs=12, learning_rate=0.3, selection="last", patience=1)
    outcomes = train(lab.build(), lab.members(4), lab.data, lab.validation, settings)
    assert [outcome.best_epoch for outcome in outcomes] == [12] * 4
    for outcome in outcomes:
        assert outcome.best_score == outcome.history["validation"][-1]
        model = outcome.model(lab.build())
        assert score(model, lab.validation, settings) == pytest.approx(outcome.best_score, abs=1e-12)
    assert any(outcome.best_score > outcome.history["validation"].min() for outcome in outcomes)


@pytest.mark.parametrize(
    ("method", "count", "selection"),
    [*((method, 3, "nll") for method in METHODS if method not in OUTLOOK), ("dbk-silu", 1, "crps"), ("dnn", 1, "crps")],
)
def test_the_best_epoch_is_kept(lab, method, count, selection):
    """The model that comes out has, on the validation data, the best score of the history, and it says so."""
    settings = lab.settings(method, epochs=12, learning_rate=0.05, selection=selection)
    for outcome in train(lab.build(method), lab.members(count), lab.data, lab.validation, settings):
        validation = outcome.history["validation"]
        assert outcome.best_epoch == 1 + int(validation.argmin())
        assert outcome.best_score == float(validation.min())
        assert score(outcome.model(lab.build(method)), lab.validation, settings) == pytest.approx(
            outcome.best_score, abs=1e-12
        )


def test_some_best_epoch_is_not_the_last(lab):
    """That the test above can fail."""
    settings = lab.settings(epochs=12, learning_rate=0.05)
    found = [o.best_epoch for o in train(lab.build(), lab.members(6), lab.data, lab.validation, settings)]
    assert len(set(found)) > 1
    assert min(found) < 12


def test_corrected_methods_are_selected_with_the_correction(lab):
    """The same training, told to predict with and without it: the scores differ, the training does not."""
    runs = [
        train(build, lab.members(2), lab.data, lab.validation, lab.settings("pp-dkl"))
        for build in (lab.build("pp-dkl"), lab.uncorrected("pp-dkl"))
    ]
    for corrected, plain in zip(*runs, strict=True):
        assert torch.allclose(corrected.history["train_loss"], plain.history["train_loss"], rtol=1e-12)
        assert abs(corrected.best_score - plain.best_score) > 1e-3


def test_validation_rows_may_be_weighted(lab):
    """A weight k is as good as k equal rows; a weight 0, as none."""
    x, y = lab.validation.x, lab.validation.y
    weight = torch.arange(len(y), dtype=torch.float64) % 4
    repeated = Rows(x.repeat_interleave(weight.long(), 0), y.repeat_interleave(weight.long(), 0))
    runs = [
        train(lab.build(), lab.members(2), lab.data, rows, lab.settings(epochs=8))
        for rows in (Rows(x, y, weight), repeated)
    ]
    plain = train(lab.build(), lab.members(2), lab.data, lab.validation, lab.settings(epochs=8))
    for weighted, counted, unweighted in zip(*runs, plain, strict=True):
        assert lab.difference(weighted, counted) < 1e-12
        assert abs(weighted.best_score - unweighted.best_score) > 1e-4


@pytest.mark.parametrize("count", [1, 3])
def test_validation_in_several_chunks(lab, count):
    """Chunks are never smaller than 1024 rows; the last of these has few."""
    validation = lab.rows(2100, 9)
    settings = lab.settings(epochs=3)
    for outcome in train(lab.build(), lab.members(count), lab.data, validation, settings):
        assert score(outcome.model(lab.build()), validation, settings) == pytest.approx(outcome.best_score, abs=1e-12)


RESTLESS = {"epochs": 60, "learning_rate": 0.03}
MARGIN = 0.005


@pytest.fixture(scope="module")
def runs(lab):
    """The same six members without patience and with it."""
    arguments = (lab.build(), lab.members(6), lab.data, lab.validation)
    return train(*arguments, lab.settings(**RESTLESS)), train(*arguments, lab.settings(**RESTLESS, patience=4))


def first_stop(validation: Tensor, patience: int) -> tuple[int, int]:
    """(the epoch at which a member with this history stops, its best epoch until then)."""
    best, best_epoch = math.inf, 0
    for epoch, value in enumerate(validation.tolist(), 1):
        if value < best:
            best, best_epoch = value, epoch
        elif epoch - best_epoch >= patience:
            return epoch, best_epoch
    return len(validation), best_epoch


def test_a_member_stops_when_it_has_not_improved(runs):
    for free, patient in zip(*runs, strict=True):
        stop, best_epoch = first_stop(free.history["validation"], 4)
        assert stop < 60, "a member that does not stop shows nothing here"
        assert (patient.status, patient.best_epoch) == ("stopped", best_epoch)
        assert patient.best_score == float(free.history["validation"][best_epoch - 1])
        assert "4 epochs" in patient.reason
    stops = [first_stop(free.history["validation"], 4)[0] for free in runs[0]]
    assert len(set(stops)) > 2
    assert any(free.best_score < patient.best_score for free, patient in zip(*runs, strict=True))


def test_a_stopped_members_result_no_longer_changes(lab, runs):
    """It is what a run that ends at that epoch comes to, while the others go on."""
    for free, patient, member in zip(*runs, lab.members(6), strict=True):
        stop, _ = first_stop(free.history["validation"], 4)
        truncated = lab.settings(**{**RESTLESS, "epochs": stop})
        alone = train(lab.build(), [member], lab.data, lab.validation, truncated)[0]
        assert lab.largest(patient.parameters, alone.parameters) < 1e-10
        for name, column in alone.history.items():
            assert torch.allclose(patient.history[name][:stop], column, rtol=0.0, atol=1e-10), name


def test_a_stopped_members_history_ends_where_it_stopped(runs):
    """Among others as alone: what the record of a member says does not depend on who trained beside it."""
    for free, patient in zip(*runs, strict=True):
        stop, _ = first_stop(free.history["validation"], 4)
        assert {name: len(column) for name, column in patient.history.items()} == dict.fromkeys(HISTORY, stop)


def test_a_run_ends_when_all_have_stopped(lab, runs):
    told = []
    train(
        lab.build(),
        lab.members(6),
        lab.data,
        lab.validation,
        lab.settings(**RESTLESS, patience=4),
        progress=told.append,
    )
    stops = [first_stop(free.history["validation"], 4)[0] for free in runs[0]]
    assert [report.epoch for report in told] == list(range(1, max(stops) + 1))
    assert [report.active for report in told] == [
        sum(stop > epoch for stop in stops) for epoch in range(1, max(stops) + 1)
    ]


def test_a_member_goes_on_while_it_comes_near_its_best(lab):
    """With a margin it stops when none of its last epochs came near, and nothing else changes until then."""
    arguments = (lab.build(), lab.members(6), lab.data, lab.validation)
    how = {**RESTLESS, "selection": "crps"}
    free, strict, tolerant = (
        train(*arguments, lab.settings(**how, **more))
        for more in ({}, {"patience": 2}, {"patience": 2, "margin": MARGIN})
    )
    lengths = []
    for one, at_once, other in zip(free, strict, tolerant, strict=True):
        scores, best, stop = one.history["validation"], 0, None
        for epoch in range(len(scores)):
            if scores[epoch] < scores[best]:
                best = epoch
            elif epoch - best >= 2 and scores[epoch - 1 : epoch + 1].min() >= scores[best] + MARGIN:
                stop = epoch + 1
                break
        assert (other.best_epoch, other.best_score) == (best + 1, scores[best])
        assert torch.equal(other.history["validation"], scores[:stop])
        assert other.status == ("finished" if stop is None else "stopped")
        lengths.append([len(run.history["validation"]) for run in (at_once, other, one)])
    assert any(strict < tolerant for strict, tolerant, _ in lengths), "a margin that changes nothing shows nothing"
    assert any(tolerant < free for _, tolerant, free in lengths), "a member that does not stop shows nothing here"


def test_patience_that_is_never_tried_changes_nothing(lab):
    arguments = (lab.build(), lab.members(3), lab.data, lab.validation)
    for a, b in zip(
        train(*arguments, lab.settings(epochs=10)), train(*arguments, lab.settings(epochs=10, patience=10)), strict=True
    ):
        assert lab.same(a, b)
        assert a.status == "finished"
