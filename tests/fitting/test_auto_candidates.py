"""method="auto": how each of what there is to choose from is trained."""

from typing import Any

import numpy as np
import pytest

from deepbasis.fitting.decide import make_plan
from deepbasis.fitting.plan import Facts
from deepbasis.fitting.spec import Spec
from support.choosing import SHALLOW, TAKING, easy, small
from support.runs import prepared, watched

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"members": 7, "patience": 3, "learning_rate": 1e-4, "epochs": 500, "compile": True},
        {"calibrate": True},
        {"calibrate": False},
        {"embedding": "none"},
        {"trend": "none"},
    ],
    ids=str,
)
def test_kernels_are_trained_in_their_own_way_whatever_is_asked_of_networks(changes: dict[str, Any]) -> None:
    """As if each had been asked for by its name, and all rows were its own."""
    _, *kernels = make_plan(Spec(device="cpu", **changes), Facts(table_rows=100, rows=90, columns=3)).candidates
    assert [kernel.architecture.method for kernel in kernels] == ["sv-rbf", "sv-rbf-linear", "linear"]
    for kernel in kernels:
        asked = {**SHALLOW, "method": kernel.architecture.method, "calibrate": changes.get("calibrate", False)}
        (alone,) = make_plan(Spec(device="cpu", **asked), Facts(table_rows=100, rows=100, columns=3)).candidates
        assert kernel.on_all_rows
        assert (kernel.architecture, kernel.settings) == (alone.architecture, alone.settings)
        assert (kernel.members, kernel.weights, kernel.calibrate) == (1, alone.weights, alone.calibrate)


@pytest.mark.parametrize(
    ("facts", "distance"),
    [({}, "none"), ({}, "widen"), ({"censored": True}, "none"), ({"table_rows": 5_000, "rows": 4_500}, "widen")],
    ids=str,
)
def test_no_candidate_makes_more_passes_than_asked_for(facts: dict[str, Any], distance: str) -> None:
    table = Facts(**{"table_rows": 100, "rows": 90, "columns": 3, **facts})

    def passes(**changes: Any) -> list[tuple[str, int]]:
        plan = make_plan(Spec(device="cpu", distance=distance, **changes), table)
        far = [plan.distance.kernel] if plan.distance is not None and plan.distance.kernel is not None else []
        all_of_them = [(one.architecture.method, one.settings) for one in (*plan.candidates, *far)]
        return [(method, settings.epochs * settings.passes) for method, settings in all_of_them]

    assert len(passes(epochs=3)) > 1
    assert {made for _, made in passes(epochs=3)} == {3}
    for (method, usual), (_, made) in zip(passes(), passes(epochs=10**6), strict=True):
        assert made == (10**6 if method == "dbk-silu" else usual), "more would not help a kernel"


def test_each_candidate_is_trained_as_planned() -> None:
    """The better kernel once more, without the rows that judge it."""
    model = small(patience=3, learning_rate=1e-4, members=3)
    deep, shallow, other, line = (candidate.settings for candidate in prepared(model, *easy())[1].candidates)
    assert shallow == other == line
    assert (deep.objective, deep.learning_rate, deep.patience) == ("dppgp", 1e-4, 3)
    assert (shallow.objective, shallow.learning_rate, shallow.patience) == ("mml", 0.05, 5)
    assert (deep.average, shallow.average) == (0.0, None)  # over a tenth of eight steps
    assert deep.precision == shallow.precision == "float64"
    _, watch = watched(model, *easy())
    begun = [watch.of(training)[0] for training in range(watch.trainings)]
    assert [(report.members, report.epochs) for report in begun] == [(3, 8), *[(1, 5)] * 4]


@pytest.mark.parametrize(("rows", "columns", "apart"), [(40, 60, True), (249, 3, True), (250, 3, False)])
def test_parameters_that_are_many_for_the_rows_are_judged_by_rows_that_they_have_not_seen(
    rows: int, columns: int, apart: bool
) -> None:
    X = np.random.default_rng(0).normal(size=(rows, columns))
    plan = prepared(small(), X, X[:, 0])[1]
    *kernels, line = plan.kernels
    assert {kernel.trained_apart for kernel in kernels} == {apart}
    assert (line.trained_apart, line.one_by_one) == (False, True)  # two parameters, however many columns


def test_a_kernel_is_trained_on_all_rows() -> None:
    """Nothing has to stop it: what it has not seen it is then asked about by its posterior without these rows."""
    X, y = easy()
    given = {"recipe": TAKING["sv-rbf"]["recipe"], "validation_fraction": "auto"}
    model = small(**given, learning_rate=1e-9, epochs=10).fit(X, y)
    assert (model.method_, model.rows_) == ("sv-rbf", 100)
    alone = small(**{**SHALLOW, **given, "method": "sv-rbf"})
    losses = [one.history_[0]["train_loss"] for one in (model, alone.fit(X, y, X_val=X[:9], y_val=y[:9]))]
    np.testing.assert_array_equal(*losses)
    assert not np.allclose(alone.fit(X, y).history_[0]["train_loss"], losses[0], rtol=1e-6)  # a tenth is held out
