"""Training in tf32, bf16, float32 and float64."""

from itertools import permutations
from threading import Barrier, Thread

import pytest
import torch

from deepbasis.engine.device import training_precision
from deepbasis.engine.training import train
from support.validation import score


@pytest.mark.parametrize("count", [1, 3])
def test_bf16_trains_close_to_float32(lab, count):
    arguments = (lab.build(), lab.members(count), lab.data, lab.validation)
    full, half = (train(*arguments, lab.settings(precision=p, epochs=20)) for p in ("float32", "bf16"))
    for a, b in zip(full, half, strict=True):
        assert 0.0 < lab.largest(a.parameters, b.parameters) < 0.3
        assert b.best_score == pytest.approx(a.best_score, abs=0.1)
        assert {value.dtype for value in b.parameters.values()} == {torch.float32}


def test_bf16_is_for_training_steps_alone(lab):
    """Validation is in float32: the score can be had again from the parameters."""
    settings = lab.settings(precision="bf16")
    outcome = train(lab.build(), lab.members(1), lab.data, lab.validation, settings)[0]
    validation = lab.validation.to(torch.device("cpu"), torch.float32)
    assert score(outcome.model(lab.build()), validation, settings) == pytest.approx(outcome.best_score, abs=1e-6)


def test_float32_is_close_to_float64(lab):
    arguments = (lab.build("dbk-rbf"), lab.members(2), lab.data, lab.validation)
    runs = [train(*arguments, lab.settings("dbk-rbf", precision=p, epochs=10)) for p in ("float64", "float32")]
    for a, b in zip(*runs, strict=True):
        assert 0.0 < lab.largest(a.parameters, b.parameters) < 1e-3


def allowed() -> bool:
    return torch.backends.cuda.matmul.allow_tf32


@pytest.fixture(params=[False, True], ids=["not allowed before", "allowed before"])
def before(request):
    usual = allowed()
    torch.backends.cuda.matmul.allow_tf32 = request.param
    yield request.param
    torch.backends.cuda.matmul.allow_tf32 = usual


@pytest.mark.parametrize("leaving", list(permutations(range(3))), ids=str)
def test_fits_that_overlap_leave_tf32_as_it_was(before, leaving):
    """It is on while any of them asks for it, in whatever order they end."""
    asked = ("tf32", "float32", "tf32")
    blocks = [training_precision(precision, None) for precision in asked]
    for block in blocks:
        block.__enter__()
    inside = [*range(3)]
    for k in leaving:
        assert allowed() == (before or "tf32" in [asked[i] for i in inside])
        blocks[k].__exit__(None, None, None)
        inside.remove(k)
    assert allowed() == before


def test_threads_that_train_in_tf32_have_it_until_they_end(before):
    start, lost = Barrier(8), []

    def work() -> None:
        start.wait()
        for _ in range(500):
            with training_precision("tf32", None):
                if not allowed():
                    lost.append(1)

    workers = [Thread(target=work) for _ in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert lost == []
    assert allowed() == before


def test_a_product_in_full_precision_does_not_undo_what_happens_meanwhile(before):
    """The last fit in tf32 ends while another one, in float32, is in the middle of such a product."""
    a = torch.ones(1_000, 1_000)
    product = Thread(target=lambda: torch.ops.deepbasis.full_product(a, a))
    with training_precision("tf32", None):
        product.start()
        while allowed() and product.is_alive():
            pass
    product.join()
    assert allowed() == before
