"""Gradients by formulas, on a CPU, against those of autograd."""

import logging
from dataclasses import replace
from functools import partial

import pytest
import torch

from deepbasis.engine.batches import Rows
from deepbasis.engine.members import Member
from deepbasis.engine.settings import settings_for
from deepbasis.engine.training import train
from deepbasis.engine.wave import Wave
from deepbasis.gp.build import build
from deepbasis.gp.embedding import Fourier, Periodic, PeriodicLinear
from deepbasis.gp.likelihoods import GaussianLikelihood
from deepbasis.gp.model import Terms

CPU = torch.device("cpu")


def rows(n, d, weights="none", members=1):
    generator = torch.Generator().manual_seed(n + d)
    x = torch.randn(n, d, generator=generator, dtype=torch.float64)
    y = torch.sin(x[:, 0]) + 0.1 * torch.randn(n, generator=generator, dtype=torch.float64)
    weight = {
        "none": lambda: None,
        "rows": lambda: torch.rand(n, generator=generator) + 0.5,
        "members": lambda: (torch.rand(members, n, generator=generator) > 0.3).float(),
    }
    return Rows(x, y, weight[weights]())


def wave(data, *, fused, members=2, embedding=None, slope=False, alpha=0.0, likelihood="gaussian", **options):
    """A wave of small networks: sizes are those of `build`, everything else is a setting."""
    d = data.x.shape[1]
    sizes = {"width": 8, "inner": 12, "rank": 6, "blocks": 2}
    sizes |= {name: options.pop(name) for name in list(options) if name in sizes}
    method = options.pop("method", "dbk-silu")

    def make(member):
        made = None if embedding is None else lambda: embedding(d)
        return build(
            method, d, **sizes, embedding=made, likelihood=likelihood, noise=0.1, slope=member.slope, seed=member.seed
        )

    line = tuple(0.1 * (k + 1) for k in range(d)) if slope else ()
    team = [Member(seed=k, alpha=alpha, beta=0.5 + k, noise=0.1, slope=line) for k in range(members)]
    options = {"epochs": 3, "batch_size": 32, "learning_rate": 1e-2, "precision": "float64", **options}
    settings = replace(settings_for(method, **options), fused=fused)
    return Wave(make, list(range(members)), team, data, data, settings, CPU)


def moved(one):
    """The parameters of a wave, away from where they start: there the shifts of norms are 0 and their weights 1."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for leaf in one.stack.leaves.values():
            leaf.add_(0.1 * torch.randn(leaf.shape, generator=generator, dtype=leaf.dtype))
    return one


def gradients(one):
    """Losses of the first batch, and their gradients."""
    one.source.start_epoch(0)
    one.source.advance()
    if one.steps.by_formulas is None:
        one.steps.loss().backward()
        losses = one.steps.loss_sum
    else:
        losses = one.steps.by_formulas(one.source.take())
    return losses.double(), {name: leaf.grad for name, leaf in one.stack.leaves.items()}


CASES = {
    "one member": {"members": 1},
    "three members, three blocks": {"members": 3, "blocks": 3},
    "waves of each column": {"embedding": PeriodicLinear},
    "waves of one column": {"embedding": PeriodicLinear, "columns": 1},
    "waves across columns": {"embedding": partial(Fourier, frequencies=5), "columns": 2},
    "waves across columns, one member": {"embedding": partial(Fourier, frequencies=5), "members": 1},
    "a line": {"slope": True},
    "a line beside waves, one member": {"slope": True, "embedding": PeriodicLinear, "members": 1},
    "weights": {"weights": "rows"},
    "rows of each member": {"weights": "members"},
    "one batch, the same for all": {"n": 30},
    "fewer rows than a batch, of each member": {"n": 9, "weights": "members"},
    "a trace term that ppgp has not": {"objective": "ppgp", "alpha": 0.3},
    "detached": {"objective": "dppgp-detached"},
}


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_gradients_are_those_of_autograd(case):
    case = {"columns": 4, "n": 70, "weights": "none", **case}
    data = rows(case.pop("n"), case.pop("columns"), case.pop("weights"), case.get("members", 2))
    mine = moved(wave(data, fused=True, **case))
    assert mine.steps.by_formulas is not None
    (losses, found), (expected_losses, expected) = gradients(mine), gradients(moved(wave(data, fused=False, **case)))
    torch.testing.assert_close(losses, expected_losses, rtol=1e-12, atol=1e-12)
    assert found.keys() == expected.keys()
    for name, value in found.items():
        assert value.shape == expected[name].shape, name
        torch.testing.assert_close(value, expected[name], rtol=1e-10, atol=1e-13, msg=name)


@pytest.mark.parametrize("embedding", [None, PeriodicLinear, partial(Fourier, frequencies=5)])
def test_terms_are_those_of_the_model(embedding):
    data = rows(40, 3)
    one = moved(wave(data, fused=True, embedding=embedding, slope=True))
    found = one.validation.terms(data.x)
    expected = one.stack.map(lambda model, x: tuple(model(x)), shared=(data.x,))
    for name, mine, theirs in zip(Terms._fields, found, expected, strict=True):
        if name != "kl":  # which no prediction needs
            torch.testing.assert_close(mine, theirs.to(mine), rtol=1e-10, atol=1e-12, msg=name)


@pytest.mark.parametrize("optimiser", ["adamw", "muon"])
def test_a_run_ends_where_that_of_autograd_ends(lab, optimiser):
    """Twenty steps, the last of each epoch with fewer rows, validated in chunks of several sizes."""
    build = lab.build(embedding=partial(PeriodicLinear, 3), blocks=2)
    members = [replace(member, alpha=0.0) for member in lab.members(3)]
    settings = lab.settings(optimiser=optimiser, average=0.9, clip=0.5, schedule="cosine", selection="crps")
    mine, theirs = (
        train(build, members, lab.data, lab.validation, replace(settings, fused=fused)) for fused in (True, False)
    )
    for a, b in zip(mine, theirs, strict=True):
        assert lab.difference(a, b) < 1e-9


def test_in_float32_formulas_err_no_more_than_autograd():
    """Both beside float64: gradients of all parameters together."""
    data = rows(200, 6)
    shape = {"embedding": PeriodicLinear, "width": 64, "inner": 64, "rank": 32, "batch_size": 128}
    exactly = gradients(moved(wave(data, fused=False, **shape)))[1]

    def error(fused):
        found = gradients(moved(wave(data, fused=fused, precision="float32", **shape)))[1]
        return sum(float((found[name].double() - value).square().sum()) for name, value in exactly.items()) ** 0.5

    assert error(True) < 1.5 * error(False)


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ({"alpha": 0.1}, "trace term"),
        ({"objective": "elbo"}, "objective elbo"),
        ({"precision": "bf16"}, "in bf16"),
        ({"method": "dbk-rbf"}, "SiLU expansion"),
        ({"embedding": Periodic}, "Periodic"),
        ({"embedding": partial(PeriodicLinear, flags=[1])}, "columns of 0 and 1"),
        ({"likelihood": "student"}, "Gaussian likelihood"),
        ({"likelihood": partial(GaussianLikelihood, parameterisation="clamp")}, "logarithm of its noise"),
    ],
)
def test_what_they_do_not_cover_goes_by_autograd_and_the_log_says_why(case, reason, caplog):
    caplog.set_level(logging.INFO, logger="deepbasis")
    one = wave(rows(40, 3), fused=True, **case)
    assert one.steps.by_formulas is None
    assert reason in caplog.text
    one.prepare()
    assert one.train_epoch(lambda: False)


def test_they_can_be_left_out():
    assert wave(rows(40, 3), fused=False).steps.by_formulas is None
    assert wave(rows(40, 3), fused=True, compile=True).steps.by_formulas is None
