"""`deepbasis export`: a model for other runtimes."""

from __future__ import annotations

from typing import Annotated

import typer

from deepbasis.cli.common import load_model, quantile_levels
from deepbasis.cli.options import OUTPUT, Debug, Model, option
from deepbasis.tables.output import check_output


def export(
    model: Model,
    onnx: Annotated[str, option("FILE", "Where to write the ONNX graph: .onnx.", OUTPUT)],
    quantiles: Annotated[
        str, option("Q,Q,...", "Quantiles that the graph gives, beside mean and std.", OUTPUT)
    ] = "0.025,0.1,0.5,0.9,0.975",
    debug: Debug = False,
) -> None:
    """Write a model of number columns as an ONNX graph, which runs without deepbasis and without Python.

    Its input X is a matrix of float64: the columns of the fit in their order, NaN for a missing number. Its outputs are
    mean, std and quantiles, the last with a column for each level. The names of the columns and the levels stand in
    the metadata of the graph. A model with categories, dates or text, or of classes or counts, is refused.

    [bold]deepbasis export[/bold] model.safetensors --onnx model.onnx

    [bold]deepbasis export[/bold] model.safetensors --onnx model.onnx --quantiles 0.05,0.95
    """
    levels = quantile_levels(quantiles)
    check_output(onnx, endings=(".onnx",), inputs=[model])
    fitted = load_model(model)
    from deepbasis.interop.onnx import export_onnx

    export_onnx(fitted, onnx, levels)
    typer.echo(f"The graph is in {onnx}")
