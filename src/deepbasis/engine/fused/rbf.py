"""The RBF basis of many members: what its kernels are given (`rbf_matrix`, `rbf_tiles`), and the memory for it."""

from typing import Any

import torch
from torch import Tensor

from deepbasis.engine.fused.layout import Launch, Layout
from deepbasis.engine.fused.operands import Planes

_COLUMNS = 16  # of a Cholesky factor at a time


class RBFBasis:
    """From features to gradients in features, and in the parameters of the kernel."""

    def __init__(
        self, layout: Layout, parameters: Tensor, jitter: float, planes: Planes, tiles: int, rows: int
    ) -> None:
        from deepbasis.engine.fused import rbf_matrix, rbf_tiles  # Triton takes a moment, and few processes need it

        self._matrix, self._tiles = rbf_matrix, rbf_tiles
        self._layout, self._arena, self._jitter, self._planes = layout, parameters, jitter, planes
        members, T, R, parts = len(parameters), planes.T, layout.constants["R"], planes.of_rank
        self._squares = parts * (parts + 1) // 2

        def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(*shape, dtype=dtype, device=parameters.device)

        self.features = zeros(members, rows, T)
        """Of each row; after the way back the gradients in them."""
        self._exact = zeros(2, members, 1 + 3 * parts, rows, T, dtype=torch.float16)
        self._exact_scales = zeros(members, 1 + 3 * parts, tiles)
        self._factors = zeros(2, members, parts + self._squares, T * T, dtype=torch.float16)
        self._factor_scales = zeros(members, parts + self._squares)
        self._frames = zeros(members, 2 * T + R)
        self._matrices = zeros(members, R, R, dtype=torch.float64)
        self._columns = zeros(members, R, 2 * R, dtype=torch.float64)
        self._diagonals = zeros(members, 2, _COLUMNS, _COLUMNS, dtype=torch.float64)
        self._multipliers = zeros(members, _COLUMNS * (_COLUMNS + 1), dtype=torch.float64)
        self._of_roots = zeros(2, members, self._squares, T * T, dtype=torch.float16)
        self._of_root_scales = zeros(members, self._squares)
        self._of_points, self._of_logs = zeros(members, R, T), zeros(members, R)
        self._moments = zeros(members, tiles, T + R)

    def factors(self) -> list[Launch]:
        """K_ZZ and its inverse root: before any row."""
        members, numbers, second = len(self._arena), self._layout.numbers, self._factors[0].numel()
        T, R, factors = self._planes.T, self._layout.constants["R"], (self._factors, self._factor_scales)
        arguments: tuple[Any, ...] = (
            self._arena, self._matrices, *factors, self._frames, numbers, self._layout.arguments["expansion"],
            self._jitter, second,
        )  # fmt: skip
        constants = {"T": T, "H": T, "R": R, "num_warps": 4}
        matrix = Launch(self._matrix.kernel_matrix, (self._squares, members), arguments, constants)
        scratch = self._columns, self._diagonals, self._multipliers
        arguments = (self._matrices, *scratch, *factors, second)
        constants = {"T": T, "R": R, "SOME": min(_COLUMNS, T), "num_warps": 4}
        return [matrix, Launch(self._matrix.inverse_root, (members,), arguments, constants)]

    def tiles(
        self,
        weights: tuple[Tensor, Tensor],
        kept: tuple[Tensor, Tensor, Tensor],
        sums: Tensor,
        trace: tuple[Tensor, Tensor, Tensor],
        sizes: tuple[int, ...],
        floor: float,
        constants: dict[str, Any],
    ) -> list[Launch]:
        """From the features to the loss, and back. `constants` are those of `many.forward` and `many.backward`."""
        planes, places = self._planes, self._layout.arguments
        members, tiles = len(self._arena), self._moments.shape[1]
        exact = self.features, self._exact, self._exact_scales, self._factors, self._factor_scales, self._frames
        sizes = (*sizes, self._exact[0].numel(), self._factors[0].numel(), planes.of_L, planes.phi)
        behind = places["expansion"], places["posterior"], places["noise_at"], places["count"], floor
        names = "ROWS TRACE EXPECTED CORRECTED SPLIT T R num_warps num_stages"
        arguments: tuple[Any, ...] = (
            self._arena, *weights, *kept, sums, *exact, *trace, self._layout.numbers, *sizes, *behind,
        )  # fmt: skip
        chosen = {name: constants[name] for name in names.split()}
        forward = Launch(self._tiles.basis_forward, (tiles, members), arguments, chosen)
        arguments = (
            self._arena, *weights, *kept, *exact, self._moments, *trace, self._layout.numbers, *sizes, *behind,
        )  # fmt: skip
        names = "ROWS MOST_TILES TRACE THROUGH CORRECTED SPLIT T R num_warps num_stages"
        chosen = {name: constants[name] for name in names.split()}
        return [forward, Launch(self._tiles.basis_backward, (tiles, members), arguments, chosen)]

    def gradients(self, gradients: Tensor, constants: dict[str, Any]) -> list[Launch]:
        """Sums over all rows, and from them what the parameters get."""
        members, tiles = len(self._arena), self._moments.shape[1]
        second, factors = self._of_roots[0].numel(), (self._factors, self._factor_scales)
        found = self._of_roots, self._of_root_scales, self._of_points, self._of_logs
        arguments: tuple[Any, ...] = (
            self._exact, self._exact_scales, *found, tiles, self.features.shape[1], self._exact[0].numel(), second,
        )  # fmt: skip
        names = "ROWS STEP T R num_warps num_stages"
        chosen = {name: constants[name] for name in names.split()}
        programs = self._squares + self._planes.of_rank
        products = Launch(self._tiles.basis_products, (programs, members), arguments, chosen)
        arguments = (
            self._arena, gradients, self._matrices, *factors, *found, self._moments, self._frames,
            self._layout.numbers, tiles, self._layout.arguments["expansion"], self._factors[0].numel(), second,
        )  # fmt: skip
        chosen = {"T": self._planes.T, "R": self._layout.constants["R"], "num_warps": 4, "num_stages": 1}
        return [products, Launch(self._matrix.kernel_gradients, (members,), arguments, chosen)]
