"""Every argument is written once: estimator, docstring and command have what `Arguments` has."""

import inspect
import json
import math
import re
import subprocess
import sys
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import torch
from typer.main import get_command

from deepbasis import DeepBasisRegressor, InputError
from deepbasis.cli import app
from deepbasis.cli.options import option_of
from deepbasis.fitting.recipe import FLOAT64_ROWS, RECIPES, training_precision
from deepbasis.fitting.spec import RunOptions, Spec, arguments

NAMES = [one.name for one in arguments()]


def test_the_estimators_signature_is_the_arguments():
    parameters = inspect.signature(DeepBasisRegressor).parameters
    assert list(parameters) == NAMES
    for one in arguments():
        assert parameters[one.name].default is one.default
        assert parameters[one.name].kind is inspect.Parameter.KEYWORD_ONLY
    assert list(DeepBasisRegressor().get_params()) == sorted(NAMES)


def test_the_docstring_has_an_entry_for_each_with_type_and_default():
    text = inspect.getdoc(DeepBasisRegressor) or ""
    section = text[text.index("Parameters\n---") : text.index("Attributes\n---")]
    entries = re.findall(r"^(\w+) : (.+), default (.+)$", section, re.MULTILINE)
    assert [name for name, _, _ in entries] == NAMES
    for (_, kind, default), one in zip(entries, arguments(), strict=True):
        assert (
            one.metadata["kind"].type().startswith(kind.partition("}")[0])
        )  # tests register names too, which come last
        assert default == (f'"{one.default}"' if isinstance(one.default, str) else str(one.default))
    assert all(len(line) <= 120 for line in text.splitlines())


def test_the_command_has_an_option_for_each():
    options = {parameter.name: parameter for parameter in get_command(app).commands["fit"].params}  # type: ignore[attr-defined]
    for one in arguments():
        option = option_of(one)
        name = option.strip("-").replace("-", "_")
        if one.metadata["panel"]:
            assert options[name].opts == [option]
            assert options[name].default == one.default
            assert one.metadata["help"].startswith(options[name].help)
        else:
            assert name not in options
    assert {one.name for one in fields(RunOptions)} <= options.keys()


def test_fit_dataset_has_the_run_options():
    parameters = inspect.signature(DeepBasisRegressor.fit_dataset).parameters
    for one in fields(RunOptions):
        assert parameters[one.name].default is one.default


def test_the_arguments_do_not_bring_torch():
    code = "import sys, deepbasis.fitting.spec, deepbasis.cli; print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"


# ---- numbers in the helps are the recipe's ---------------------------------------------------------------------------


def helps(name: str) -> str:
    return str(next(one for one in arguments() if one.name == name).metadata["help"])


def test_the_helps_name_the_numbers_of_the_default_recipe():
    recipe = RECIPES["default"]
    small, large, gpu = recipe.small, recipe.large, recipe.large_on_gpu
    rows = f"{recipe.small_rows:,} rows"
    assert small.rank == large.rank
    assert f"auto: {large.rank}, or {gpu.rank} on a GPU above {rows}" in helps("rank")
    assert f"auto is {recipe.small_classes.rank} for classes up to {rows}" in helps("rank")
    assert recipe.small_classes.rank == recipe.exact.rank == recipe.inducing_points == RECIPES["paper"].large.rank
    times = {1: "the same as `width`", 2: "twice that"}
    assert small.inner_factor == large.inner_factor
    assert f"auto: {times[large.inner_factor]}, or {times[gpu.inner_factor]} on a GPU above {rows}" in helps("inner")
    assert large.optimiser == gpu.optimiser
    assert f"auto: {large.optimiser}, or {small.optimiser} up to {rows}" in helps("optimiser")
    assert recipe.shallow_optimiser in helps("optimiser")
    assert recipe.exact.optimiser == small.optimiser
    assert (large.embedding, large.embedding_columns) == (gpu.embedding, gpu.embedding_columns)
    assert f"auto: {large.embedding}, or fourier" in helps("embedding")
    assert (small.embedding, small.embedding_columns) == (large.embedding, large.embedding_columns)
    assert f"auto is {recipe.small_classes.embedding} for classes up to {rows}" in helps("embedding")
    assert f"from {small.rival_rows:,} on a race of {recipe.race_steps} steps" in " ".join(helps("optimiser").split())
    assert small.rival.optimiser == large.optimiser
    assert f"above {large.embedding_columns} encoded columns" in helps("embedding")
    assert f"up to {large.embedding_flags} of them" in helps("embedding")
    assert (large.weight_decay, large.rival.weight_decay) == (gpu.weight_decay, gpu.rival.weight_decay)
    assert f"auto: {large.weight_decay:g}, or {large.rival.weight_decay:g} where" in helps("weight_decay")
    assert f"Above {rows}" in helps("weight_decay")
    assert f"{recipe.race_steps} steps" in helps("weight_decay")
    assert f"float64 up to {FLOAT64_ROWS} rows, then {training_precision('float32')} on a GPU" in helps("dtype")


# ---- checks ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("method", "nonsense"), ("method", None), ("recipe", "best"), ("objective", "mle"), ("likelihood", "poisson?"),
        ("rank", 0), ("rank", 2.5), ("rank", True), ("width", -1), ("blocks", "two"), ("inner", 0),
        ("embedding", "waves"), ("scaling", "max"), ("trend", "half"), ("alpha", -0.1), ("alpha", "much"),
        ("beta", math.nan), ("members", 0), ("epochs", 0), ("epochs", "all"), ("batch_size", 1.5),
        ("learning_rate", 0.0), ("learning_rate", "fast"), ("weight_decay", -1.0),
        ("validation_fraction", 0.0), ("validation_fraction", 1.0), ("patience", 0), ("calibrate", "yes"),
        ("calibrate", 1), ("dtype", "float16"), ("device", "tpu"), ("compile", 0), ("random_state", -1),
        ("random_state", 2**32), ("random_state", 1.5), ("random_state", True),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_by_its_name(name: str, value: Any):
    with pytest.raises(InputError, match=f"^{name} "):
        Spec(**{name: value})


def test_numbers_of_numpy_and_devices_of_torch_become_plain_python():
    spec = Spec(rank=np.int64(8), alpha=np.float32(0.5), calibrate=np.bool_(True), device=torch.device("cpu"))
    assert [type(getattr(spec, name)) for name in ("rank", "alpha", "calibrate", "device")] == [int, float, bool, str]
    assert json.loads(json.dumps(vars(spec)))["device"] == "cpu"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"method": "dnn", "objective": "elbo"}, "method 'dnn' has no distribution"),
        ({"objective": "mse"}, "objective 'mse' says nothing"),
        ({"method": "sv-rbf", "embedding": "fourier"}, "no network for an embedding"),
    ],
)
def test_what_does_not_go_together_is_refused(changes: dict[str, Any], words: str):
    with pytest.raises(InputError, match=words):
        Spec(**changes)


@pytest.mark.parametrize("name", ["censored", "input-noise", "interval", "outputs", "classes"])
def test_likelihoods_that_a_fit_chooses_by_itself_are_not_offered(name: str):
    """A spec may have them, since a plan is made from one."""
    assert Spec(likelihood=name).likelihood == name
    option = next(one for one in arguments() if one.name == "likelihood").metadata["kind"]
    assert name not in option.metavar().split("|")
    assert {"gaussian", "student", "poisson", "negative-binomial"} <= set(option.metavar().split("|"))
    with pytest.raises(InputError, match=f"^likelihood '{name}' is what some fits choose by themselves: leave it out"):
        Spec.of(DeepBasisRegressor(likelihood=name))
    with pytest.raises(InputError, match=r"^likelihood must be one of .*; got 'gamma'") as refused:
        Spec(likelihood="gamma")
    assert name not in str(refused.value)


def test_a_spec_does_not_change():
    spec = Spec(rank=8)
    with pytest.raises(AttributeError, match="does not change"):
        spec.rank = 9
    assert replace(spec, members=2).rank == 8
    with pytest.raises(InputError, match="members"):
        replace(spec, members=0)
    with pytest.raises(TypeError, match="unknown arguments: ranks"):
        Spec(ranks=3)


def test_the_estimator_keeps_what_it_was_given_and_checks_when_it_fits():
    model = DeepBasisRegressor(rank="many")
    assert model.rank == "many"
    with pytest.raises(InputError, match="rank must be a positive integer"):
        model.fit(np.zeros((4, 1)), np.zeros(4))
