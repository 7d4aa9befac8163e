"""The product that tf32 must not touch: its value, its gradient, under vmap; and that tf32 would spoil it."""

from collections.abc import Iterator

import pytest
import torch

from deepbasis.gp.expansion import RBF
from deepbasis.gp.precision import _full_product, full_product


def factors(*shapes: tuple[int, ...], seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in shapes]


def test_value_and_gradient_are_those_of_a_product():
    a, b = factors((4, 3), (3, 5))
    assert torch.equal(_full_product(a, b), a @ b)
    assert torch.autograd.gradcheck(_full_product, (a, b))


def test_strided_factors():
    a, b = factors((3, 4), (5, 3))
    assert torch.equal(_full_product(a.mT, b.mT), a.mT @ b.mT)
    assert torch.autograd.gradcheck(lambda a, b: _full_product(a.mT, b.mT), (a, b))


@pytest.mark.parametrize("axes", [(0, 0), (0, None), (None, 0), (1, 2)])
def test_members_by_vmap(axes):
    """A factor that the members share gets the sum of their gradients."""
    shapes = [list(shape) for shape in ((4, 3), (3, 5))]
    for shape, axis in zip(shapes, axes, strict=True):
        if axis is not None:
            shape.insert(axis, 2)
    a, b = factors(*map(tuple, shapes))
    ours = torch.vmap(_full_product, in_dims=axes)(a, b)
    theirs = torch.vmap(torch.matmul, in_dims=axes)(a, b)
    torch.testing.assert_close(ours, theirs, rtol=0.0, atol=1e-14)
    weight = torch.rand_like(ours)
    for mine, its in zip(
        torch.autograd.grad((ours * weight).sum(), (a, b)),
        torch.autograd.grad((theirs * weight).sum(), (a, b)),
        strict=True,
    ):
        torch.testing.assert_close(mine, its, rtol=0.0, atol=1e-13)


@pytest.fixture(params=[True, False])
def allowed(request) -> Iterator[bool]:
    """tf32 is allowed, or not; torch's switch takes no monkeypatch."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = request.param
    yield request.param
    torch.backends.cuda.matmul.allow_tf32 = before


def test_the_switch_is_put_back(allowed):
    _full_product(*factors((2, 2), (2, 2)))
    assert torch.backends.cuda.matmul.allow_tf32 is allowed
    with pytest.raises(RuntimeError):
        _full_product(*factors((2, 2), (3, 2)))
    assert torch.backends.cuda.matmul.allow_tf32 is allowed


def rounded_to_tf32(x: torch.Tensor) -> torch.Tensor:
    """To 10 bits of mantissa, to nearest."""
    bits = x.float().view(torch.int32)
    return ((bits + 0x1000) & ~0x1FFF).view(torch.float32)


def test_why_tf32_would_spoil_the_whitening():
    """A smooth kernel on the plane with many inducing points: half of phi would be rounding."""
    torch.manual_seed(0)
    basis = RBF(2, 1024)
    x = torch.rand(100, 2) * 2.0 - 1.0
    with torch.no_grad():
        phi = basis(x).phi
        root, _ = basis._inverse_root()
        spoiled = rounded_to_tf32(basis._cross_kernel(x)) @ rounded_to_tf32(root).mT
    assert (spoiled - phi).norm() / phi.norm() > 0.3


@pytest.mark.cuda
def test_an_rbf_basis_is_the_same_with_tf32():
    torch.manual_seed(0)
    basis = RBF(2, 256).cuda()
    x = (torch.rand(100, 2) * 2.0 - 1.0).cuda()
    results = []
    for allowed in (False, True):
        torch.backends.cuda.matmul.allow_tf32 = allowed
        try:
            basis.zero_grad()
            phi = basis(x).phi
            phi.square().sum().backward()
        finally:
            torch.backends.cuda.matmul.allow_tf32 = False
        results.append((phi.detach(), basis.Z.grad.clone()))
    for full, with_tf32 in zip(*results, strict=True):
        torch.testing.assert_close(with_tf32, full, rtol=1e-5, atol=1e-5)


@pytest.mark.cuda
def test_a_product_on_a_gpu_is_in_full_precision():
    a, b = (f.detach().float().cuda() for f in factors((64, 256), (256, 64)))
    true = a.double() @ b.double()
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        ours, plain = full_product(a, b), a @ b
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False
    assert (ours - true).norm() / true.norm() < 1e-6
    assert (plain - true).norm() / true.norm() > 1e-5, "tf32 was not used at all: the test shows nothing"
