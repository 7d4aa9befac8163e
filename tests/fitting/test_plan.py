"""What "auto" comes to: steps, batches, rates, rows held out, embeddings, candidates; and a plan as one value."""

import json
from dataclasses import FrozenInstanceError, replace
from html import unescape
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deepbasis import DeepBasisRegressor, InputError
from deepbasis.fitting.decide import hold_out, make_plan
from deepbasis.fitting.plan import Candidate, Facts, Plan
from deepbasis.fitting.recipe import RECIPES, Recipe, batch_size_for, epochs_for, stream_epochs_for
from deepbasis.fitting.spec import Spec
from deepbasis.tables.preprocessing import Preprocessor
from deepbasis.tables.table import Table

DEFAULT, PAPER = RECIPES["default"], RECIPES["paper"]


def planned(rows: int, *, max_steps: int | None = None, spec: dict[str, Any] | None = None, **facts: Any) -> Plan:
    given = {"table_rows": rows, "rows": rows, "columns": 4, **facts}
    return make_plan(Spec(**{"device": "cpu", **(spec or {})}), Facts(**given), max_steps)


def encoded(X: Any) -> tuple[Table, Preprocessor]:
    table = Table.read(X, np.zeros(len(X)))
    return table, Preprocessor.fit(table.names, table.columns)


def network(rows: int, **more: Any) -> Candidate:
    return planned(rows, **more).candidates[0]


def usual(recipe: Recipe, rows: int, batch_size: int, exact: bool, on_gpu: bool) -> int:
    """Epochs."""
    return epochs_for(recipe, recipe.networks(rows, exact, on_gpu), rows, batch_size, exact)


def streamed(rows, batch_size, on_gpu, passes, max_steps, exact=False, recipe=DEFAULT):
    """Epochs, and rows of an epoch."""
    here = usual(recipe, rows, batch_size, exact, on_gpu)
    return stream_epochs_for(recipe, rows, batch_size, exact, here, passes, max_steps)


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
    epochs, epoch_rows = streamed(rows, batch_size, on_gpu, passes, max_steps, recipe=RECIPES[recipe])
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
    epochs, epoch_rows = streamed(50_000_000, 512, False, None, None)
    assert (epochs, epoch_rows) == (20, 1_000 * 512)
    epochs, epoch_rows = streamed(50_000_000, 512, False, None, 300)
    assert (epochs, epoch_rows) == (6, 50 * 512)
    epochs, epoch_rows = streamed(50_000_000, 512, False, 2, None)
    assert epochs * epoch_rows == pytest.approx(100_000_000, rel=0.01)


@pytest.mark.parametrize("rows", [100, 5_000, 60_000])
def test_a_small_table_takes_the_steps_that_it_takes_in_memory(rows):
    plans = planned(rows, streamed=True), planned(rows)
    streamed, resident = (plan.candidates[0].settings for plan in plans)
    steps = [
        settings.epochs * settings.passes * -(-plan.epoch_rows // settings.batch_size)
        for plan, settings in zip(plans, (streamed, resident), strict=True)
    ]
    assert steps[0] == pytest.approx(steps[1], rel=0.1)
    assert streamed.batch_size == resident.batch_size
    assert streamed.learning_rate == resident.learning_rate


def test_an_exact_step_is_a_pass():
    assert streamed(10**6, 512, False, None, None, exact=True) == (DEFAULT.exact_steps, 10**6)
    assert streamed(10**6, 512, False, 7, None, exact=True) == (7, 10**6)
    assert streamed(10**6, 512, False, None, 5, exact=True) == (5, 10**6)


def test_in_memory_steps_are_bounded_by_whole_passes():
    batches = {"batch_size": 100}
    assert network(10_000, max_steps=350, spec=batches).settings.epochs == 3
    assert planned(10_000, max_steps=350, spec=batches).warnings == ()
    too_few = planned(10_000, max_steps=1, spec=batches)
    assert too_few.candidates[0].settings.epochs == 1
    assert "max_steps=1 is less than one pass over the 10000 rows" in too_few.warnings[0]
    assert network(10_000, max_steps=9, spec={"objective": "mml"}).settings.epochs == 9


@pytest.mark.parametrize(
    ("rows", "batch_size", "passes", "steps"),
    [
        (200, 200, 10, 800),
        (1_024, 1_024, 10, 800),
        (1_025, 512, 3, 800),
        (4_000, 512, 1, 2_700),
        (9_000, 512, 1, 2_700),
        (10**6, 512, 1, 9_770),  # five epochs at least
    ],
)
def test_batches_and_steps_grow_with_the_table(rows, batch_size, passes, steps):
    settings = network(rows).settings
    assert (settings.batch_size, settings.passes) == (batch_size, passes)
    assert settings.epochs * passes * -(-rows // batch_size) == pytest.approx(steps, rel=0.01)


@pytest.mark.parametrize(
    "changes", [{"epochs": 7}, {"patience": 7}, {"objective": "mml"}, {"recipe": "paper"}, {"batch_size": 10}], ids=str
)
def test_an_epoch_is_a_pass_where_it_was_asked_for_or_has_many_steps(changes):
    assert network(100, spec=changes).settings.passes == 1


def test_a_margin_is_for_the_recipe_and_its_crps_alone():
    settings = network(4_000).settings
    assert (settings.patience, settings.margin) == (round(0.15 * settings.epochs), 0.02)
    others = {"patience": 7}, {"epochs": 60}, {"recipe": "paper"}, {"likelihood": "student"}, {"objective": "mml"}
    for changes in others:
        assert network(4_000, spec=changes).settings.margin == 0.0, changes
    waits = network(4_000, spec={"likelihood": "student"}).settings
    assert waits.patience == round(0.5 * waits.epochs)


@pytest.mark.parametrize(("rows", "changes"), [(10**6, {}), (10**6, {"likelihood": "student"}), (4_000, {"epochs": 6})])
def test_where_there_are_few_epochs_a_bad_one_ends_nothing(rows, changes):
    settings = network(rows, spec=changes).settings
    assert settings.epochs < 10
    assert settings.patience == 5


@pytest.mark.parametrize("max_steps", [1, 7, 10, 25, 799])
def test_several_passes_an_epoch_are_never_more_steps_than_asked_for(max_steps):
    settings = network(100, max_steps=max_steps).settings
    assert max_steps - settings.passes < settings.epochs * settings.passes <= max_steps


@pytest.mark.parametrize(
    ("changes", "selection", "optimiser", "rate"),
    [
        ({"method": "sv-rbf", "objective": "mml"}, "last", "lbfgs", 0.05),
        ({"method": "sv-rbf", "objective": "mml", "optimiser": "adamw"}, "last", "adamw", 0.05),
        ({"method": "sv-rbf", "objective": "mml", "learning_rate": 1e-4}, "last", "adamw", 1e-4),
        ({"method": "sv-rbf", "objective": "mml", "recipe": "paper"}, "last", "adamw", 1e-3),
        ({"method": "sv-rbf"}, "crps", "adamw", 5e-3),
        ({"method": "dbk-silu", "objective": "mml"}, "crps", "adamw", 3e-3),
        ({"method": "sv-dkl", "objective": "mml"}, "crps", "adamw", 3e-3),
        ({}, "crps", "adamw", 5e-3),
        ({"learning_rate": 0.5}, "crps", "adamw", 0.5),
        ({"recipe": "paper"}, "nll", "adamw", 1e-3),
    ],
    ids=str,
)
def test_a_shallow_kernel_trained_exactly_is_trained_by_l_bfgs_to_the_end(changes, selection, optimiser, rate):
    """Unless a learning rate is given, which it has none of."""
    settings = network(500, spec=changes).settings
    assert (settings.selection, settings.optimiser, settings.learning_rate) == (selection, optimiser, rate)


def test_classes_have_waves_of_a_wide_table_whose_columns_are_mostly_flags():
    """Those cost little: they have two values. Of numbers nothing was measured."""

    def told(**facts: Any) -> tuple[str, tuple[int, ...]]:
        found = network(10**4, spec={"likelihood": "classes"} if facts.get("classes") else {}, **facts).architecture
        return found.embedding, found.flags

    flags = tuple(range(6, 130))
    assert told(columns=130, flags=flags, classes=2) == ("periodic-linear", flags)
    assert told(columns=130, flags=flags) == ("none", ())
    assert told(columns=250, flags=flags, classes=2) == ("periodic-linear", flags)
    assert told(columns=260, flags=flags, classes=2) == ("none", ())
    assert told(columns=60, flags=flags[:50], classes=2) == ("periodic-linear", ())
    assert told(columns=400, flags=tuple(range(6, 400)), classes=2) == ("none", ())
    assert network(10**3, spec={"likelihood": "classes"}, columns=130, flags=flags, classes=2).architecture.flags == ()


# ---- before the network ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "rows", "changes", "embedding"),
    [
        (["numbers"] * 2, 2_001, {}, "fourier"),
        (["numbers"] * 3, 2_001, {}, "fourier"),
        (["numbers", "numbers", "constant"], 2_001, {}, "fourier"),
        (["numbers"] * 3, 2_001, {"method": "sv-dkl"}, "fourier"),
        (["numbers"] * 3, 2_000, {}, "periodic-linear"),
        (["numbers"], 2_001, {}, "periodic-linear"),
        (["numbers"], 2_000, {}, "none"),
        (["numbers"] * 128, 10**6, {}, "periodic-linear"),
        (["numbers"] * 129, 10**6, {}, "none"),
        (["numbers", "words"], 10**6, {}, "periodic-linear"),
        (["words"], 10**6, {}, "periodic-linear"),
        (["numbers", "numbers", "constant word"], 10**6, {}, "fourier"),
        (["numbers", "holes"], 10**6, {}, "periodic-linear"),
        (["holes"], 2_000, {}, "periodic-linear"),
        (["numbers", "numbers", "holes"], 10**6, {}, "periodic-linear"),
        (["numbers"] * 2, 10**6, {"recipe": "paper"}, "none"),
        (["numbers"] * 2, 10**6, {"method": "sv-rbf"}, "none"),
        (["numbers"] * 2, 10**6, {"embedding": "none"}, "none"),
        (["numbers"] * 4, 100, {"embedding": "periodic"}, "periodic"),
    ],
    ids=str,
)
def test_a_network_is_told_columns_and_places_in_waves(columns, rows, changes, embedding):
    kinds = {
        "numbers": np.arange(6.0),
        "constant": np.ones(6),
        "words": np.array(list("abcabc"), dtype=object),
        "constant word": np.array(["a"] * 6, dtype=object),
        "holes": np.array([1.0, 2.0, 3.0, np.nan, 5.0, 6.0]),
    }
    table = pd.DataFrame({f"{name}{k}": kinds[name] for k, name in enumerate(columns)})
    _, preprocessor = encoded(table)
    facts = {"columns": preprocessor.width, "number_columns": preprocessor.coordinates}
    assert network(rows, spec=changes, **facts).architecture.embedding == embedding


# ---- on a GPU --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "steps"),
    [
        (200, (800, 800)),
        (2_000, (800, 800)),
        (2_001, (2_700, 6_000)),  # no longer small
        (5_000, (2_700, 6_000)),
        (30_000, (8_850, 8_850)),
        (60_000, (9_440, 12_000)),
        (10**6, (9_770, 11_724)),
        (10**7, (97_660, 97_660)),  # five epochs at least
    ],
)
def test_a_gpu_takes_other_steps_where_the_table_is_not_small(rows, steps):
    batch_size = batch_size_for(DEFAULT, rows)
    a_pass = -(-rows // batch_size)
    found = [usual(DEFAULT, rows, batch_size, False, on_gpu) * a_pass for on_gpu in (False, True)]
    assert found == pytest.approx(list(steps), rel=0.01)


def test_a_gpu_makes_no_difference_otherwise():
    """To the paper's recipe, to exact training, and to what a user asks for."""
    for rows in (500, 5_000, 10**5):
        batch_size = batch_size_for(PAPER, rows)
        assert usual(PAPER, rows, batch_size, False, True) == usual(PAPER, rows, batch_size, False, False)
        assert usual(DEFAULT, rows, 512, True, True) == DEFAULT.exact_steps
    for passes, max_steps in ((3, None), (None, 700), (3, 700)):
        plans = [streamed(20_000, 512, gpu, passes, max_steps) for gpu in (False, True)]
        assert plans[0] == plans[1]


def test_a_stream_on_a_gpu_takes_the_steps_of_a_table_in_memory():
    epochs, rows = streamed(10_000, 512, True, None, None)
    assert epochs * -(-rows // 512) == pytest.approx(6_000, rel=0.01)
    epochs, rows = streamed(10_000, 512, False, None, None)
    assert epochs * -(-rows // 512) == pytest.approx(3_000, rel=0.01)


def test_a_notebook_shows_what_is_printed():
    plan = planned(500)
    assert unescape(plan._repr_html_()) == f"<pre>{plan}</pre>"


def test_a_plan_knows_its_device():
    steps = {}
    for device in ("cpu", "cuda"):
        settings = (
            make_plan(Spec(device=device), Facts(table_rows=10_000, rows=10_000, columns=4)).candidates[0].settings
        )
        steps[device] = settings.epochs * -(-10_000 // settings.batch_size)
        assert not settings.compile  # it takes longer than it saves
    assert steps["cpu"] == pytest.approx(3_000, rel=0.01)
    assert steps["cuda"] == pytest.approx(6_000, rel=0.01)


@pytest.mark.parametrize(
    ("rows", "device", "changes", "expected"),
    [
        (2_000, "cpu", {}, ("adamw", 5e-3, 32, 64)),
        (2_001, "cpu", {}, ("muon", 1e-2, 32, 64)),
        (2_001, "cuda", {}, ("muon", 1e-2, 64, 128)),
        (2_001, "cpu", {"optimiser": "adamw"}, ("adamw", 3e-3, 32, 64)),
        (2_000, "cpu", {"optimiser": "muon"}, ("muon", 1e-2, 32, 64)),
        (2_001, "cpu", {"method": "dbk-rbf"}, ("muon", 1e-2, 128, 64)),
        (2_001, "cpu", {"objective": "mml"}, ("adamw", 3e-3, 128, 64)),
        (2_001, "cpu", {"rank": 7, "inner": 9, "learning_rate": 2e-2}, ("muon", 2e-2, 7, 9)),
        (2_001, "cpu", {"recipe": "paper"}, ("adamw", 1e-3, 128, 64)),
    ],
)
def test_optimiser_and_sizes_follow_the_table_and_the_device(rows, device, changes, expected):
    candidate = network(rows, spec={"device": device, **changes})
    settings, architecture = candidate.settings, candidate.architecture
    assert (settings.optimiser, settings.learning_rate, architecture.rank, architecture.inner) == expected
    if settings.optimiser == "muon":
        assert settings.muon_rate == pytest.approx(5.0 * settings.learning_rate)


def test_the_average_is_over_a_tenth_of_the_steps():
    assert network(1_000).settings.average == pytest.approx(1.0 - 1 / 80)
    assert network(10_000).settings.average == pytest.approx(1.0 - 1 / 300, rel=1e-5)
    assert network(10_000, spec={"epochs": 1}).settings.average == pytest.approx(0.5)
    assert network(10_000, spec={"recipe": "paper"}).settings.average is None


@pytest.mark.parametrize("rows", [1_000, 10_000])
def test_classes_are_overfitted_soon_and_stop_sooner(rows):
    for recipe, shares in (("default", (0.5, 0.15)), ("paper", (1.0, 1.0))):
        changes = {"recipe": recipe, "likelihood": "student"}, {"recipe": recipe}
        student, classes = (
            network(rows, spec=spec, classes=count).settings for spec, count in zip(changes, (0, 3), strict=True)
        )
        assert [one.patience for one in (student, classes)] == [
            round(share * one.epochs) for share, one in zip(shares, (student, classes), strict=True)
        ]


# ---- candidates ------------------------------------------------------------------------------------------------------


def methods(rows: int, **more: Any) -> list[str]:
    return [one.architecture.method for one in planned(rows, **more).candidates]


def test_a_small_table_has_kernels_beside_the_networks():
    assert methods(1_000) == ["dbk-silu", "sv-rbf", "sv-rbf-linear", "linear"]
    assert methods(2_000) == ["dbk-silu", *methods(1_000)]  # a race
    assert methods(2_001) == methods(2_000)
    assert methods(2_001, columns=129) == ["dbk-silu", "dbk-silu", "sv-rbf"]
    assert methods(20_001) == ["dbk-silu", "dbk-silu"]


def test_a_line_through_many_columns_is_not_tried():
    """It has a basis function for each of them, whatever rank is asked for, and an exact step costs their cube."""
    for changes in ({}, {"rank": 8}):
        assert "linear" in methods(40, columns=512, spec=changes)
        assert methods(40, columns=513, spec=changes) == ["dbk-silu", "sv-rbf"]
    assert methods(40, columns=8, spec={"rank": 8}) == ["dbk-silu", "sv-rbf", "sv-rbf-linear", "linear"]
    assert methods(40, columns=9, spec={"rank": 8}) == ["dbk-silu", "sv-rbf", "linear"]


@pytest.mark.parametrize(
    "more",
    [
        {"grouped": True},
        {"streamed": True},
        *(
            {"spec": changes}
            for changes in (
                {"method": "dbk-silu"},
                {"objective": "elbo"},
                {"embedding": "periodic"},
                {"trend": "linear"},
                {"recipe": "paper"},
            )
        ),
    ],
    ids=str,
)
def test_there_are_no_kernels_for_groups_streams_and_who_asks_for_a_network(more):
    assert len(methods(500, **more)) == 1


def test_a_kernel_has_its_own_way_of_training():
    _, kernel, *_ = planned(500, spec={"epochs": 300, "learning_rate": 0.7, "members": 5}).candidates
    assert kernel.on_all_rows
    assert kernel.settings.objective == "mml"
    assert kernel.settings.epochs == DEFAULT.search_steps
    assert (kernel.members, kernel.calibrate, kernel.weights) == (1, False, ((0.0, 0.0),))
    assert kernel.architecture.jitter == DEFAULT.shallow_jitter < network(500).architecture.jitter
    assert planned(500, spec={"calibrate": True}).candidates[1].calibrate


def test_precision_is_double_for_few_rows_and_the_same_for_all_candidates():
    for rows, precision in ((256, "float64"), (257, "float32")):
        assert {one.settings.precision for one in planned(rows).candidates} == {precision}
    assert network(10, spec={"dtype": "float32"}).settings.precision == "float32"


@pytest.mark.parametrize(
    ("rows", "spec", "parts", "fraction"),
    [
        (2_000, {}, 4, 0.1),
        (2_001, {}, 1, 0.1),
        (500, {"members": 1}, 1, 0.1),
        (500, {"method": "sv-rbf"}, 1, 0.1),
        (500, {"validation_fraction": 0.3}, 1, 0.3),
        (500, {"recipe": "paper"}, 1, 0.1),
    ],
    ids=str,
)
def test_members_of_a_small_table_hold_out_different_rows(rows, spec, parts, fraction):
    found = hold_out(Spec(**spec), rows)
    assert (found.parts, found.fraction) == (parts, fraction)


@pytest.mark.parametrize(
    ("rows", "leaves", "spec", "trend"),
    [
        (2_001, 0.1, {}, "half"),
        (2_001, 0.11, {}, "none"),
        (2_000, 0.01, {}, "none"),
        (2_001, None, {}, "none"),
        (2_001, 0.01, {"members": 1}, "none"),
        (2_001, 0.01, {"trend": "none"}, "none"),
        (2_001, 0.01, {"recipe": "paper"}, "none"),
        (2_001, 0.01, {"method": "sv-rbf"}, "none"),
        (2_001, 0.01, {"method": "dbk-rbf"}, "half"),
        (100, None, {"trend": "linear"}, "linear"),
        (2_001, 0.9, {"trend": "linear", "members": 1, "recipe": "paper"}, "linear"),
    ],
    ids=str,
)
def test_half_of_the_members_have_a_line_where_it_explains_nearly_all(rows, leaves, spec, trend):
    assert network(rows, spec=spec, line_leaves=leaves).architecture.trend == trend


# ---- the plan as a value ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", [{}, {"recipe": "paper"}, {"method": "sv-rbf", "objective": "mml"}], ids=str)
def test_a_plan_goes_to_json_and_back(spec):
    plan = planned(500, spec=spec)
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan


def test_a_plan_is_frozen_and_can_be_read():
    plan = planned(500)
    with pytest.raises(FrozenInstanceError):
        plan.recipe = "paper"  # type: ignore[misc]
    assert replace(plan, recipe="paper") != plan
    lines = str(plan).splitlines()
    held_out = "1/4 of the rows, another part for each member"
    assert lines[0] == f"recipe default, on cpu (members in threads); standard inputs; held out: {held_out}"
    assert [line.split(" ", 3)[2] for line in lines if line.startswith("candidate")] == [
        "dbk-silu",
        "sv-rbf",
        "sv-rbf-linear",
        "linear",
    ]
    assert ", 4 members, " in lines[2]
    assert ", 1 member, " in lines[4]


def test_a_fit_follows_its_plan_and_says_who_won(few_exact_steps):
    X = np.random.default_rng(0).normal(size=(60, 2))
    sizes = {"members": 2, "epochs": 2, "rank": 8, "width": 8, "blocks": 1}
    model = DeepBasisRegressor(**sizes, recipe=few_exact_steps, random_state=0, device="cpu")
    asked = model.plan(X, X[:, 0])
    model.fit(X, X[:, 0])
    assert model.plan_ == asked
    chosen = model.plan_.candidates[model.fitted_.chosen].architecture
    assert replace(model.fitted_.architecture, rank=chosen.rank) == chosen
    assert model.method_ == chosen.method


def test_a_recipe_can_be_added(few_exact_steps):
    assert network(500, spec={"recipe": few_exact_steps, "objective": "mml"}).settings.epochs == 5
    with pytest.raises(InputError, match="recipe must be one of"):
        Spec(recipe="nonsense")
