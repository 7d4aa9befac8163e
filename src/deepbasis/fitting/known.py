"""Rows of files whose targets are known: how well a model predicts them, and what it learns from them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from deepbasis.fitting.blocks import Encode, components
from deepbasis.fitting.budget import Machine, check_fits
from deepbasis.fitting.distribution import PredictiveDistribution, scores
from deepbasis.fitting.fitted import ROWS_AT_A_TIME, Fitted
from deepbasis.fitting.targets import bound_columns
from deepbasis.fitting.update import NewRows, Scores, check_learns, update
from deepbasis.tables.predictions import input_names, open_inputs
from deepbasis.tables.roles import DROP, Roles, read_known
from deepbasis.tables.targets import group_names

_ROW_NUMBERS, _COMPONENT_NUMBERS, _EDGE_NUMBERS = 24, 8, 6
"""Numbers that are held at once while predictions are scored: of a row, of each component of its mixture, and of each
edge between the values of a discrete target. Measured."""
_LEARNED_NUMBERS, _ROLE_NUMBERS, _GROUP_NUMBERS = 8, 4, 16
"""The same while a model learns: of a row, of each of its columns that is no input, and of the name of its group."""


def evaluate_file(
    fitted: Fitted,
    data: Any,
    target: str | None = None,
    lower: str | None = None,
    upper: str | None = None,
    exposure: str | None = None,
    machine: Machine | None = None,
    drop_missing_target: bool = False,
) -> tuple[int, dict[str, float]]:
    """The number of rows of one file, and the scores of their predictions; the model may know the names of its target,
    its bounds and its exposure. All of them are held in memory, and refused where the machine has too little."""
    exposure = fitted.scored_exposure(exposure)
    lower, upper = bound_columns(fitted.target, data, lower, upper)
    targets = fitted.target_columns(target)
    columns = [column for column in (*targets, lower, upper, exposure) if column is not None]
    beside = [] if fitted.preprocessor.input_columns else columns  # of an array: all columns but these
    source = open_inputs(data, fitted.preprocessor, beside)
    classes, edges = max(1, fitted.target.classes), len(fitted.architecture.edges)
    numbers = _ROW_NUMBERS + _COMPONENT_NUMBERS * classes * components(fitted) + _EDGE_NUMBERS * edges
    check_fits(source, 8 * numbers, machine)
    labels = fitted.target.labels if fitted.target.classes else None
    roles = Roles([], targets[0], labels=labels, lower=lower, upper=upper, outputs=fitted.target.outputs)
    roles = replace(roles, exposure=exposure, drop_missing_target=drop_missing_target, remedy=DROP)
    known = read_known(data, roles)
    encode = Encode(fitted, input_names(source, fitted.preprocessor, beside))
    predicted = fitted.predict_encoded(encode(block) for block in source.all_blocks(encode.names, ROWS_AT_A_TIME))
    encode.odd.warn(source.name)
    if drop_missing_target:
        there = ~np.isnan(known.y)
        predicted, known = predicted[there], known.rows(there)
    if known.exposure is not None:
        predicted = PredictiveDistribution(predicted).exposed(known.exposure).tensors
    return len(known), scores(predicted, known.y, known.bounds, outputs=fitted.target.outputs)


def update_file(
    fitted: Fitted,
    data: Any,
    target: str | None = None,
    *,
    weight: str | None = None,
    groups: str | None = None,
    lower: str | None = None,
    upper: str | None = None,
    forget: float = 1.0,
    machine: Machine | None = None,
) -> tuple[Fitted, Scores]:
    """What the model is after more rows, of a table in files. Inputs are read piece by piece; all targets are held in
    memory, and refused where the machine has too little."""
    check_learns(fitted)
    fitted.check_target_name("target", target)
    targets = fitted.target_columns(target)
    outputs = targets if len(targets) > 1 else ()
    roles = Roles([], targets[0], weight, groups, lower=lower, upper=upper, outputs=outputs)
    beside = [] if fitted.preprocessor.input_columns else roles.columns
    source = open_inputs(data, fitted.preprocessor, beside)
    source.check_rows()
    numbers = _LEARNED_NUMBERS + _ROLE_NUMBERS * len(roles.columns) + _GROUP_NUMBERS * (groups is not None)
    check_fits(source, 8 * numbers, machine)
    known = read_known(data, roles)
    encode = Encode(fitted, input_names(source, fitted.preprocessor, beside))
    names = None if known.groups is None else group_names(known.groups, len(known))
    chunks = (encode(block) for block in source.all_blocks(encode.names, ROWS_AT_A_TIME))
    with source.located():
        y = fitted.target.check(known.y)
        found = update(fitted, NewRows(y, chunks, known.weight, names, known.bounds), forget)
    encode.odd.warn(source.name)
    return found
