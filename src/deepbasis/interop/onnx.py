"""ONNX export: a fit to numbers as one graph, from a table's own columns to mean, std and quantiles.

The graph is the package's own code: `torch.export` follows it, whatever depends on parameters alone is computed, and
`torch.onnx` translates the rest. As in Python, networks are float32; kernels of the inputs, and what comes after
either, are float64.
"""

from __future__ import annotations

import json
import logging
import operator
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from importlib import import_module
from os import PathLike
from typing import Any

import torch
from torch import Tensor, fx, nn

from deepbasis import __version__
from deepbasis.errors import InputError
from deepbasis.fitting.distance import check_none
from deepbasis.fitting.fitted import Fitted
from deepbasis.fitting.kinds import SHARE
from deepbasis.gp.predictive import GaussianMixture, Predictive
from deepbasis.gp.warped import Warped
from deepbasis.gp.warps import Spline, Warp
from deepbasis.interop.encoding import NumberEncoding, number_columns
from deepbasis.interop.quantiles import MixtureQuantiles
from deepbasis.tables.encoders import Encoding
from deepbasis.tables.output import writing

LEVELS = (0.025, 0.1, 0.5, 0.9, 0.975)
OUTPUTS = ("mean", "std", "quantiles")
NEEDS = "ONNX export needs onnx and onnxscript: pip install 'deepbasis[onnx]'"

_OPSET = 20
_ROWS = 3  # of the example that is followed; any number but 0 and 1, which torch.export takes for constants


def export_onnx(fitted: Fitted, path: str | PathLike[str], levels: Sequence[float] = LEVELS) -> None:
    """Write a fit as an ONNX file: input "X" [n, columns], outputs "mean" [n], "std" [n] and "quantiles" [n, levels].

    X is float64, with NaN in place of a missing number, and 0 and 1 for a truth value. Its columns are those of the
    fit, in that order, less those that were left out; their names, and the levels, stand in the file's metadata. What
    has no such graph, a column of categories for instance, is refused by name.
    """
    levels = tuple(SHARE.check("a quantile's level", level) for level in levels)
    if not levels:
        raise InputError("levels must name at least one quantile, such as 0.5")
    try:
        import_module("onnx")
        import_module("onnxscript")
    except ModuleNotFoundError:
        raise InputError(NEEDS) from None
    names, encodings = number_columns(fitted.preprocessor, "an ONNX graph")
    predictor = Predictor(fitted, encodings, levels).eval()
    example = torch.zeros(_ROWS, len(encodings), dtype=torch.float64)
    rows = {0: torch.export.Dim("n")}
    with torch.no_grad(), _quietly():
        graph = folded(torch.export.export(predictor, (example,), dynamic_shapes=(rows,), strict=False))
        program: Any = torch.onnx.export(
            graph,
            (example,),
            dynamo=True,
            dynamic_shapes=(rows,),
            input_names=["X"],
            output_names=list(OUTPUTS),
            opset_version=_OPSET,
            verbose=False,
        )
    program.model.metadata_props.update(
        {
            "columns": json.dumps(names),
            "levels": json.dumps(levels),
            "target": json.dumps(fitted.target_name),
            "deepbasis": __version__,
        }
    )
    content = program.model_proto.SerializeToString()
    with writing(path) as file:
        file.write(content)


class Predictor(nn.Module):
    """X [n, columns] -> mean [n], std [n] and quantiles [n, levels] of the calibrated mixture, in the target's unit."""

    scales: Tensor

    def __init__(self, fitted: Fitted, encodings: Sequence[Encoding], levels: Sequence[float]) -> None:
        super().__init__()
        mixture, self.warp = _mixture_and_warp(fitted)
        self.encoding = NumberEncoding(encodings)
        self.encoded, self.dtype = fitted.dtype, fitted.ensemble.stack.dtype
        self.members = nn.ModuleList(deepcopy(model).to("cpu", self.dtype) for model in fitted.models)
        scales = (1.0,) if fitted.calibration is None else fitted.calibration.scales
        self.register_buffer("scales", torch.tensor(scales, dtype=torch.float64))
        self.register_buffer("shares", mixture.shares)
        self.quantiles = MixtureQuantiles(mixture.shares, levels)
        self.target_mean, self.target_scale = fitted.target.mean, fitted.target.scale

    def forward(self, X: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        means, variances = self.components(self.encoding(X).to(self.encoded).to(self.dtype))
        quantiles = self.quantiles(means, variances)
        if self.warp is not None:
            # One component after another: what they are made of then fits into a cache.
            each = [self.warp.moments(*one) for one in zip(means.unbind(), variances.sqrt().unbind(), strict=True)]
            means, variances = (torch.stack(parts) for parts in zip(*each, strict=True))
            quantiles = self.warp.inverse(quantiles)
        mean = self._average(means)
        return mean, self._average(variances + (means - mean).square()).sqrt(), quantiles

    def components(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Means and variances [e, n] in the order of the mixture's shares: scales, the likelihood's own, members."""
        members: Any = self.members
        predicted = [model.predictive(model(x)) for model in members]
        means, variances = (torch.stack(parts).double() for parts in zip(*predicted, strict=True))
        if variances.dim() == 2:  # one Gaussian a member; [members, n, q] are q with shares of their own
            variances = variances[..., None]
        variances = self.scales[:, None, None, None] * variances.permute(2, 0, 1)
        means = means.expand_as(variances).flatten(0, 2) * self.target_scale + self.target_mean
        return means, variances.flatten(0, 2) * self.target_scale**2

    def _average(self, values: Tensor) -> Tensor:
        shares: Any = self.shares
        return (shares[:, None] * values).sum(0)


def _mixture_and_warp(fitted: Fitted) -> tuple[GaussianMixture, Warp | None]:
    """What the fit predicts: its shares do not depend on the row."""
    check_none(fitted.distance, "an export to ONNX")
    width = fitted.preprocessor.width
    found: Predictive = fitted.predict_encoded([torch.zeros(1, width, dtype=fitted.dtype)])
    base, warp = (found.base, found.warp) if isinstance(found, Warped) else (found, None)
    if not isinstance(base, GaussianMixture):
        raise InputError(
            f"a target of the kind {fitted.target.name!r} cannot be exported to ONNX: only a number can, whose "
            "distribution is a mixture of Gaussians, or a warp of one"
        )
    if isinstance(warp, Spline):
        _ = warp.pieces  # is kept by the warp: it must not be made while a graph is followed
    return base, warp


def folded(program: Any) -> fx.GraphModule:
    """An exported program in which what does not depend on the input is a constant.

    So a factorisation of inducing points, which ONNX has no operation for, is done here and now.
    """
    module: fx.GraphModule = program.module(check_guards=False)
    aten: Any = torch.ops.aten
    known: dict[fx.Node, Any] = {}
    for node in module.graph.nodes:
        if node.op == "get_attr" and isinstance(value := operator.attrgetter(node.target)(module), Tensor):
            known[node] = value
        elif node.op == "call_function" and all(one in known for one in node.all_input_nodes):
            args, kwargs = fx.node.map_arg((node.args, node.kwargs), known.__getitem__)
            known[node] = node.target(*args, **kwargs)
    for node in module.graph.nodes:
        if node.target == aten.index.Tensor and node.args[0] in known and len(node.args[1]) == 1:
            node.target, node.args = aten.embedding.default, (node.args[0], *node.args[1])  # a lookup that is quick
    for number, node in enumerate(reversed(known)):  # a node's users come before it
        if node.users and node.op == "call_function":
            module.register_buffer(f"constant_{number}", known[node].detach().clone())
            with module.graph.inserting_before(node):
                node.replace_all_uses_with(module.graph.get_attr(f"constant_{number}"))
        if not node.users:
            module.graph.erase_node(node)
    module.recompile()
    return module


@contextmanager
def _quietly() -> Iterator[None]:
    """Without what torch says about its own inside."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)
