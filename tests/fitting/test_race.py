"""The race between networks: who takes part, who wins, and what an interrupt leaves."""

import io
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from deepbasis import DeepBasisRegressor
from deepbasis.fitting.decide import make_plan
from deepbasis.fitting.held_out import mean_and_error
from deepbasis.fitting.plan import Facts, Plan
from deepbasis.fitting.spec import Spec
from deepbasis.fitting.train import Execution, Runner
from support.recipes import DEFAULT, recipe
from support.regressors import easy
from support.runs import Watch, ctrl_c, fit, power_failure

pytestmark = pytest.mark.usefixtures("one_thread")


def planned(rows: int = 10_000, columns: int = 5, streamed: bool = False, **changes: Any) -> Plan:
    facts = Facts(table_rows=rows, rows=rows, columns=columns, number_columns=columns, streamed=streamed)
    return make_plan(Spec(**{"device": "cpu", **changes}), facts)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_network_with_waves_races_one_with_a_strong_decay(device):
    plan = planned(device=device)
    first, rival, *_, line = plan.candidates
    assert plan.networks == [first, rival]
    assert line.architecture.method == "linear"
    assert (first.architecture.embedding, first.settings.weight_decay) == ("periodic-linear", 0.01)
    assert (rival.architecture.embedding, rival.settings.weight_decay) == ("none", 1.0)
    assert replace(rival, architecture=first.architecture, settings=first.settings) == first
    assert plan.race_steps == 300
    assert "tried for 300 steps each" in str(plan)
    assert Plan.from_json(plan.to_json()) == plan


@pytest.mark.parametrize("rows", [1_001, 2_000])
def test_networks_of_a_small_table_race_muon(rows):
    plan = planned(rows)
    first, rival = plan.networks
    assert (first.settings.optimiser, rival.settings.optimiser) == ("adamw", "muon")
    assert rival.architecture == first.architecture
    assert rival.settings.epochs == first.settings.epochs
    assert plan.hold_out.parts == 4


@pytest.mark.parametrize("rows", [1_500, 10_000])
def test_each_candidate_is_shown_by_its_number_however_long_it_is_trained(rows):
    plan = planned(rows)
    count = len(plan.candidates)
    for number, one in enumerate(plan.candidates, 1):
        short = replace(one, members=1, settings=replace(one.settings, epochs=3, patience=1))
        name = f"{one.architecture.method} (candidate {number} of {count})"
        assert [Runner(plan, 5).name_of(same) for same in (one, short)] == [name, name]
    assert Runner(plan, 5, stage="race").name_of(plan.candidates[1]) == f"dbk-silu (race, candidate 2 of {count})"
    alone = planned(method="dbk-silu", embedding="none")
    assert Runner(alone, 5).name_of(alone.candidates[0]) == "dbk-silu"


@pytest.mark.parametrize(
    "changes",
    [
        {"rows": 1_000},
        {"rows": 2_000, "optimiser": "adamw"},
        {"columns": 2},  # a map
        {"streamed": True},
        {"embedding": "none"},
        {"weight_decay": 0.01},
        {"objective": "mml"},
        {"epochs": 25},  # 500 steps, of four members
        {"recipe": "paper"},
    ],
    ids=str,
)
def test_there_is_no_race(changes):
    plan = planned(**changes)
    assert len(plan.networks) == 1
    assert plan.race_steps == 0


def model(decay: float, rival_decay: float, **changes: Any) -> DeepBasisRegressor:
    """A regressor whose networks race for 20 steps, two epochs, and then train for 160."""
    plain = replace(DEFAULT.large, weight_decay=decay, fewest_steps=165, epochs=1)
    large = replace(plain, rival=replace(plain, embedding="none", weight_decay=rival_decay))
    steps = {"race_steps": 20, "small_rows": 10, "kernel_rows": 0, "batch_size": 32}
    short = recipe(f"race {decay} {rival_decay}", large=large, **steps)
    settings = {"members": 2, "width": 8, "blocks": 1, "random_state": 0, "device": "cpu", "validation_fraction": 0.2}
    return DeepBasisRegressor(**{**settings, "recipe": short, "target": "identity", **changes})


def table() -> tuple[np.ndarray, np.ndarray]:
    """Not a map: three columns would be one."""
    X, y = easy(400)
    return np.hstack([X, X[::-1, :2]]), y


RUINOUS = 40.0
"""A decay that leaves nothing of the network."""


@pytest.mark.parametrize(
    ("decay", "rival_decay", "chosen"), [pytest.param(0.01, RUINOUS, 0, marks=pytest.mark.slow), (RUINOUS, 0.01, 1)]
)
def test_the_better_network_is_trained_as_if_it_had_been_asked_for(decay, rival_decay, chosen):
    X, y = table()
    won = model(decay, rival_decay).fit(X, y)
    assert won.fitted_.chosen == chosen
    asked = model(decay, rival_decay, weight_decay=0.01, embedding=("periodic-linear", "none")[chosen]).fit(X, y)
    np.testing.assert_array_equal(won.predict(X), asked.predict(X))


def test_the_first_wins_unless_it_is_clearly_worse():
    X, y = table()
    noise = np.random.default_rng(0).permutation(y)
    assert model(0.01, 0.011).fit(X, noise).fitted_.chosen == 0


def test_the_error_of_a_mean_is_that_of_rows_with_weights():
    values = torch.tensor([1.0, 2.0, 4.0, 4.0], dtype=torch.float64)
    mean, error = mean_and_error(values, None)
    assert mean == 2.75
    assert error == pytest.approx(float(values.std(correction=0)) / 2)
    assert mean_and_error(values[:3], torch.tensor([1.0, 1.0, 2.0]))[0] == pytest.approx(mean)


@pytest.mark.parametrize("training", [0, 1, 2], ids=["first", "rival", "winner"])
def test_an_interrupted_race_gives_the_best_so_far(training):
    X, y = table()
    fitted = fit(model(0.01, RUINOUS), X, y, Execution(progress=Watch(training, 1, ctrl_c)))
    assert fitted.interrupted
    assert fitted.chosen == 0
    assert len(fitted.models) == (2 if training == 2 else 1)
    assert np.isfinite(fitted.predict(X).mean).all()


@pytest.mark.parametrize(
    "training", [pytest.param(1, marks=pytest.mark.slow, id="rival"), pytest.param(2, id="winner")]
)
def test_a_race_goes_on_from_its_checkpoints(tmp_path, training):
    X, y = table()
    expected = fit(model(RUINOUS, 0.01), X, y, Execution())
    kept = {"checkpoint": tmp_path / "c", "checkpoint_seconds": 0.0}
    with pytest.raises(RuntimeError, match="power"):
        fit(model(RUINOUS, 0.01), X, y, Execution(**kept, progress=Watch(training, 1, power_failure)))
    resumed = fit(model(RUINOUS, 0.01), X, y, Execution(**kept))
    np.testing.assert_array_equal(resumed.predict(X).mean, expected.predict(X).mean)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_sees_who_races(monkeypatch):
    screen = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setattr(sys, "stderr", screen)
    model(RUINOUS, 0.01, verbose=True).fit(*table())
    shown = screen.getvalue()
    names = ["(race, candidate 1 of 2)", "(race, candidate 2 of 2)", "dbk-silu (candidate 2 of 2)"]
    assert sorted(names, key=shown.index) == names
    assert "best CRPS" in shown
