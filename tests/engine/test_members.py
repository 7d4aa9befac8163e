"""Members: a stack is its models, one by one; an ensemble is the mixture of its members."""

import copy
import math
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

from deepbasis.engine.members import Ensemble, Member, Stack
from deepbasis.errors import InputError, NumericalError
from deepbasis.gp.expansion import RBF
from deepbasis.gp.model import DeepBasisGP
from deepbasis.gp.objectives import elbo
from deepbasis.gp.predictive import Predictive, mixture
from support.own import METHODS

CPU = torch.device("cpu")
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}
sizes = pytest.mark.parametrize("count", [1, 4])
methods = pytest.mark.parametrize("method", list(METHODS))


@pytest.fixture
def models(lab):
    """Models that differ in every parameter, also in those that all start alike."""

    def make(method: str, count: int, dtype: torch.dtype = torch.float64) -> list[DeepBasisGP]:
        made = [lab.build(method)(member).to(dtype) for member in lab.members(count)]
        for model in made:
            if method == "dnn":
                model.set_residual_variance(0.1)
        with torch.no_grad():
            for parameter in (p for model in made for p in model.parameters()):
                parameter += 0.05 * torch.randn_like(parameter)
        return made

    return make


def loss(model: DeepBasisGP, x: Tensor, y: Tensor, weight: Tensor | None, n: Tensor) -> Tensor:
    return elbo(model, x, y, n, weight=weight)


def close(mine: Tensor, theirs: Tensor, what: str = "") -> None:
    tolerance = TOLERANCE[theirs.dtype] * max(1.0, float(theirs.detach().abs().max()))
    torch.testing.assert_close(mine, theirs, rtol=0.0, atol=tolerance, msg=lambda m: f"{what}: {m}")


# --- stacks ---


@methods
@sizes
@pytest.mark.parametrize("weighted", [False, True])
def test_a_stack_is_its_models_one_by_one(lab, models, method, count, weighted, dtype):
    """Values and gradients; arguments of each member's own, None among them, and shared ones."""
    alone = models(method, count, dtype)
    stack = Stack(alone, device=CPU, dtype=dtype)
    x = lab.data.x[: 8 * count].view(count, 8, -1).to(dtype)
    y = lab.data.y[: 8 * count].view(count, 8).to(dtype)
    weight = torch.rand(count, 8, dtype=dtype) if weighted else None
    n = torch.tensor(100.0, dtype=dtype)
    values = stack.map(loss, (x, y, weight), (n,))
    values.sum().backward()
    for k, model in enumerate(alone):
        value = loss(model, x[k], y[k], None if weight is None else weight[k], n)
        value.backward()
        close(values[k], value, f"member {k}")
        for name, parameter in model.named_parameters():
            theirs = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            mine = stack.leaves[name].grad
            mine = torch.zeros_like(stack.leaves[name]) if mine is None else mine
            close(stack.with_axis(mine)[k], theirs, f"member {k}, gradient of {name}")


@sizes
def test_rows_may_be_shared(lab, models, count):
    alone = models("dbk-rbf", count)
    terms = Stack(alone, device=CPU, dtype=torch.float64).map(lambda model, x: model(x), shared=(lab.data.x,))
    for k, model in enumerate(alone):
        for name, mine, theirs in zip(terms._fields, terms, model(lab.data.x), strict=True):
            assert torch.equal(mine[k], theirs) if name == "info" else torch.allclose(mine[k], theirs, rtol=1e-12), name


def test_one_member_is_not_stacked(models):
    """Its leaves are the parameters of a plain module, so there is nothing to pay for being a stack."""
    stack = Stack(models("dbk-silu", 1), device=CPU, dtype=torch.float64)
    assert all(stack.leaves[name] is parameter for name, parameter in stack.template.named_parameters())


@sizes
def test_a_stack_leaves_the_models_it_was_made_of_alone(models, count):
    alone = models("dbk-silu", count)
    before = [copy.deepcopy(model.state_dict()) for model in alone]
    stack = Stack(alone, device=CPU, dtype=torch.float64)
    with torch.no_grad():
        for leaf in stack.leaves.values():
            leaf.add_(1.0)
    for model, state in zip(alone, before, strict=True):
        assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


@methods
@sizes
def test_a_member_can_be_taken_out(lab, models, method, count):
    alone = models(method, count)
    stack = Stack(alone, device=CPU, dtype=torch.float64)
    for k, model in enumerate(alone):
        taken = stack.member(k)
        assert all(torch.equal(value, model.state_dict()[name]) for name, value in taken.state_dict().items())
        assert all(torch.equal(a, b) for a, b in zip(taken(lab.data.x), model(lab.data.x), strict=True))
        with torch.no_grad():
            taken.mean.add_(1.0)
        assert float(stack.stacked()["mean"][k]) == model.mean.item()  # a copy, not a view


def test_a_stack_needs_a_model():
    with pytest.raises(InputError, match="at least one"):
        Stack([], device=CPU, dtype=torch.float64)


# --- what a member may be ---


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"seed": -1}, "seed"),
        ({"seed": 2**63}, "seed"),
        ({"seed": 1.0}, "seed"),
        ({"seed": True}, "seed"),
        ({"alpha": -0.1}, "alpha"),
        ({"alpha": math.nan}, "alpha"),
        ({"beta": -1e-9}, "beta"),
        ({"beta": "much"}, "beta"),
        ({"noise": 0.0}, "noise"),
        ({"noise": math.inf}, "noise"),
    ],
)
def test_a_member_that_cannot_be_is_refused(changes, says):
    with pytest.raises(InputError, match=says):
        Member(**changes)


# --- ensembles ---


@methods
@sizes
def test_an_ensemble_is_the_mixture_of_its_members(lab, models, method, count):
    alone = models(method, count)
    ensemble = Ensemble(alone, dtype=torch.float64)
    x, y = lab.validation.x, lab.validation.y
    together = ensemble.predict(x)
    with torch.no_grad():
        expected = mixture([model.predict(x) for model in alone])
    close(together.means, expected.means, "means")
    close(together.variances, expected.variances, "variances")
    close(together.log_prob(y), expected.log_prob(y), "log density")


def test_the_correction_matters(lab, models):
    """That the test above can fail: the corrected variances are larger by what the model says, and no others."""
    (model,) = models("sv-dkl", 1)
    x = lab.validation.x
    corrected = Ensemble([model], dtype=torch.float64).predict(x)
    model.corrected = False
    plain = Ensemble([model], dtype=torch.float64).predict(x)
    added = corrected.variances[0] - plain.variances[0]
    close(added, model(x).correction.detach())
    assert float(added.min()) > 1e-3
    assert torch.equal(plain.means, corrected.means)


@pytest.mark.parametrize("chunk_rows", [1, 3, 7, 100, 10_000])
def test_a_prediction_does_not_depend_on_its_chunks(lab, models, chunk_rows):
    alone, x = models("dbk-rbf", 3), lab.validation.x
    whole = Ensemble(alone, dtype=torch.float64).predict(x)
    parts = Ensemble(alone, dtype=torch.float64, chunk_rows=chunk_rows).predict(x)
    close(parts.means, whole.means)
    close(parts.variances, whole.variances)


@methods
@sizes
@pytest.mark.parametrize("rows", [1, 3])
def test_a_few_rows_are_those_rows_of_many(lab, models, method, count, rows):
    """The first call records, the second repeats; neither depends on the other's rows."""
    ensemble, x = Ensemble(models(method, count), dtype=torch.float64), lab.validation.x
    whole, means = ensemble.predict(x), ensemble.means(x)
    for start in (0, 5, 2):
        few = slice(start, start + rows)
        part = ensemble.predict(x[few])
        close(part.means, whole.means[:, few])
        close(part.variances, whole.variances[:, few])
        close(ensemble.means(x[few]), means[:, few])


@pytest.mark.parametrize("how", ["equal inducing points", "nan"])
def test_a_member_that_cannot_predict_is_named(lab, models, how):
    alone = models("dbk-rbf", 4)
    bad = alone[2].expansion
    assert isinstance(bad, RBF)
    with torch.no_grad():
        if how == "nan":
            bad.Z[0] = math.nan
        else:  # of two equal points without jitter, the second pivot is exactly 0
            bad.Z.zero_()
            bad.log_variance.zero_()
            for model in alone:
                model.expansion.jitter = 0.0
    with pytest.raises(NumericalError, match=r"\[2\]"):
        Ensemble(alone, dtype=torch.float64).predict(lab.validation.x)
    good = [alone[k] for k in (0, 1, 3)]
    assert bool(Ensemble(good, dtype=torch.float64).predict(lab.validation.x).means.isfinite().all())


@sizes
def test_an_ensemble_of_dnns_has_means_before_it_has_variances(lab, count):
    alone, x = [lab.build("dnn")(member).double() for member in lab.members(count)], lab.validation.x
    ensemble = Ensemble(alone, dtype=torch.float64, chunk_rows=7)
    close(ensemble.means(x), torch.stack([model(x).mean.detach() for model in alone]))
    with pytest.raises(InputError, match="set_residual_variance"):
        ensemble.predict(x)


def test_chunk_rows_must_be_positive(models):
    with pytest.raises(InputError, match="chunk_rows"):
        Ensemble(models("dbk-silu", 2), chunk_rows=0)


# --- threads ---


@pytest.mark.parametrize("method", ["dbk-silu", "dbk-rbf"])
@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("few", [False, True])
def test_threads_predict_what_one_predicts(lab, models, method, count, few):
    """4 threads, 12 predictions each, in chunks and of rows of their own; then the ensemble is as it was."""
    ensemble = Ensemble(models(method, count), dtype=torch.float64, chunk_rows=16)
    tables = [lab.rows(1 + k % 2 if few else 30 + k, k).x for k in range(4)]
    serial = [parts_of(ensemble.predict(x)) for x in tables]

    def predictions(k: int) -> bool:
        return all(torch.equal(parts_of(ensemble.predict(tables[k])), serial[k]) for _ in range(12))

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(predictions, range(4))) == [True] * 4
    for again in (pickle.loads(pickle.dumps(ensemble)), copy.deepcopy(ensemble), ensemble):
        assert torch.equal(parts_of(again.predict(tables[0])), serial[0])


def parts_of(predicted: Predictive) -> Tensor:
    return torch.stack([predicted.mean, predicted.variance])
