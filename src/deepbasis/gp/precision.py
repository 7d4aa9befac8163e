"""tf32 for a while, and matrix products that must not be rounded to it, whatever the rest of a training step uses.

tf32 keeps 10 bits of each factor. That is enough for a network's layers, but not where large numbers cancel, as they
do in the whitening K_ZZ^(-1/2) k_Z(x): its factors are up to 1/sqrt(jitter), 100 or 1,000, times as large as
their product.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

_lock = Lock()  # whoever changes the setting has it
_blocks_in_tf32 = 0
_allowed_before = False


@contextmanager
def tf32_allowed() -> Iterator[None]:
    """Within this block a GPU may round the factors of float32 products to tf32.

    The setting is global: if blocks overlap, as those of fits in several threads, the last one to end restores it.
    """
    global _blocks_in_tf32, _allowed_before
    matmul: Any = torch.backends.cuda.matmul
    with _lock:
        if _blocks_in_tf32 == 0:
            _allowed_before = matmul.allow_tf32
        _blocks_in_tf32 += 1
        matmul.allow_tf32 = True
    try:
        yield
    finally:
        with _lock:
            _blocks_in_tf32 -= 1
            if _blocks_in_tf32 == 0:
                matmul.allow_tf32 = _allowed_before


def full_product(a: Float[Tensor, "m k"], b: Float[Tensor, "k n"]) -> Float[Tensor, "m n"]:
    """a @ b in full precision, forwards and backwards."""
    return _full_product(a, b) if a.is_cuda and a.dtype == torch.float32 else a @ b


# A custom operator, so that torch.compile, vmap and CUDA graphs keep it as it is, precision switch included.
@torch.library.custom_op("deepbasis::full_product", mutates_args=())
def _full_product(a: Tensor, b: Tensor) -> Tensor:
    matmul: Any = torch.backends.cuda.matmul
    with _lock:
        before = matmul.allow_tf32
        matmul.allow_tf32 = False
        try:
            return a @ b
        finally:
            matmul.allow_tf32 = before


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
    a, b = ctx.saved_tensors
    return _full_product(gradient, b.mT), _full_product(a.mT, gradient)


def _batched(info: Any, axes: tuple[int | None, int | None], a: Tensor, b: Tensor) -> tuple[Tensor, int]:
    """Both with the member axis in front: what all members share is expanded, so that its gradient is their sum."""
    a, b = (
        factor.expand(info.batch_size, *factor.shape) if axis is None else factor.movedim(axis, 0)
        for factor, axis in zip((a, b), axes, strict=True)
    )
    return _full_product(a, b), 0


_full_product.register_fake(lambda a, b: a @ b)
_full_product.register_autograd(_backward, setup_context=_keep)
_full_product.register_vmap(_batched)
