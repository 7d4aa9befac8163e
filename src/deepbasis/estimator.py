"""`DeepBasisRegressor`: the scikit-learn face of the engine. It saves and loads through `persistence.py`."""

import math
import warnings
from collections.abc import Collection
from contextlib import nullcontext
from copy import copy
from dataclasses import replace
from itertools import cycle
from os import PathLike
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from deepbasis import persistence, streaming
from deepbasis.arguments import check_arguments, check_objective, wants_calibration
from deepbasis.budget import fits_in_memory, parse_memory
from deepbasis.choosing import fit_best
from deepbasis.engine import device as devices
from deepbasis.engine.batches import Rows
from deepbasis.engine.checkpoint import FAILED, Outcome
from deepbasis.engine.distributed import ALONE, Team
from deepbasis.engine.members import Ensemble, Member
from deepbasis.engine.streams import Stream
from deepbasis.engine.training import train
from deepbasis.errors import InputError, NumericalError, UnfinishedError, check_positive_int
from deepbasis.gp import exact
from deepbasis.gp.build import build
from deepbasis.gp.calibration import Calibration, calibrate
from deepbasis.gp.methods import METHODS
from deepbasis.gp.model import NOISE_FLOOR, DeepBasisGP
from deepbasis.gp.objectives import weighted_mean
from deepbasis.gp.predictive import GaussianMixture
from deepbasis.persistence import KIND as KIND
from deepbasis.planning import (
    How,
    Plan,
    candidates,
    embedding_of,
    folds_of,
    for_little_noise,
    fraction_of,
    inner_of,
    jitter_of,
    make_plan,
    noise_still_falls,
    trend_of,
)
from deepbasis.predictions import Predictions
from deepbasis.progress import ProgressBar
from deepbasis.recipes import ONE_THREAD_ROWS, RECIPES, method_of
from deepbasis.starting import Line, at_rows, distinct_rows, slopes_by_turns, starting_noise, straight_line
from deepbasis.tables.preprocessing import Preprocessor
from deepbasis.tables.roles import Roles
from deepbasis.tables.source import Source
from deepbasis.tables.table import Table, fold_masks, held_out_mask, row_labels
from deepbasis.tables.targets import TargetScaler
from deepbasis.validating import Fold, fair_say, looked_at

_INTERRUPTED = "the fit was interrupted: this is the best so far"


class FitWarning(UserWarning):
    """The fit ended, but something about it should be looked at."""


class DeepBasisRegressor(Predictions, RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """Regression with a predictive distribution for every row, by Gaussian processes with deep basis kernels.

    Parameters
    ----------
    method : "dbk-silu", "dbk-rbf", "vbll", "sv-dkl", "pp-dkl", "sv-rbf" or "dnn", the paper's methods, or
        "sv-rbf-linear", with a linear kernel added. A DNN has no distribution of its own: it predicts with the variance
        of its validation residuals. "auto" is "dbk-silu"; on a small table (2,000 rows) a shallow kernel, "sv-rbf" or
        "sv-rbf-linear" trained exactly on all rows, unless the networks predict rows held out better, or there are
        groups, which its likelihood knows nothing of. It is not calibrated.
    recipe : what "auto" means: "default", or "paper" for the paper's settings.
    objective : None is the method's own; "mml" trains exactly, by the marginal likelihood of all rows, or, of a sparse
        method ("sv-rbf", "sv-rbf-linear", "sv-dkl", "pp-dkl"), by its bound.
    rank, width, blocks : basis functions; width and residual blocks of the network.
    inner : width inside a block, or "auto": four times `width`; up to 2,000 rows to fit, and in the paper, as wide.
    embedding : what comes before the network: "none"; "fourier", waves across all columns together, for coordinates;
        "periodic", waves of each column; or "auto": "fourier" for tables of two or three number columns without missing
        values and more than 2,000 rows to fit.
    trend : the models' prior mean: "none", a constant; "linear", a straight line through the rows (a ridge regression;
        of a stream through the rows that it holds out), along which they go on where the rows end (up to ten standard
        deviations of a column, beyond which inputs grow only logarithmically); or "auto": a line for every second
        member, and for none if there is one alone, where it leaves a tenth of the target's variance at most and there
        are more than 2,000 rows to fit; not for a stream with validation rows of their own.
    alpha, beta : weights of the trace and KL regularisers, or "auto": the recipe's; where it has several candidates
        they are all trained together, and the validation score chooses.
    members : models in the ensemble, which predicts as their equal mixture.
    epochs, batch_size, learning_rate, patience : numbers, or "auto": the recipe's for this many rows.
    validation_fraction : share of the rows held out for early stopping, selection and calibration, or "auto": a tenth;
        of a small table in memory the first member of a network's ensemble holds out the first quarter, the next
        another, and so on, and all these rows calibrate. Rows of one group are never on both sides, nor, of a table in
        memory, are identical rows. In selection and calibration by the default recipe the copies of an input count
        for three average inputs at most.
    calibrate : whether to predict with a mixture of three scales of the predictive variance, noise included, fitted to
        the validation rows, or "auto": as the recipe says. Residuals have heavier tails than a Gaussian.
    dtype : "float32", "float64", or "auto": float64 for small tables.
    device : "cpu", "cuda", ..., or "auto": a GPU if there is one.
    compile : whether to use torch.compile, or "auto": on a GPU, for long fits.
    random_state : None, an integer or a numpy RandomState.
    verbose : whether to draw a progress bar, on a terminal.

    Attributes
    ----------
    method_ : what "auto" has come to.
    embedding_ : what comes before the network.
    trend_ : "none", "linear", or "half": every second member.
    rank_ : basis functions: `rank`, or fewer of a shallow kernel where there are fewer distinct rows; those of a linear
        kernel, one a column, come on top.
    inner_ : width inside a block.
    jitter_ : of the kernel matrix of inducing points, relative to its diagonal.
    history_ : for each member a dict of "train_loss", "validation" and "noise" (standardised units), a number an epoch.
        Of a shallow kernel "validation" is of rows that it was trained on too.
    validation_ : metrics on the rows held out, in the target's units. With calibration they are flattering: it was
        fitted to these very rows. Where members hold out different rows each is predicted by members that have not seen
        it, and not by the whole ensemble; of a shallow kernel by its posterior given the other rows.
    noise_ : noise variance of each member, in squared units of the target, before calibration.
    calibration_ : the scales of the predictive variance and their weights; None without calibration.
    alpha_, beta_ : the weights of the regularisers; a shallow kernel has none.
    rows_ : rows of the table that was fitted, validation rows among them.
    """

    def __init__(
        self,
        *,
        method: str = "auto",
        recipe: str = "default",
        objective: str | None = None,
        rank: int = 128,
        width: int = 64,
        blocks: int = 2,
        inner: int | str = "auto",
        embedding: str = "auto",
        trend: str = "auto",
        alpha: float | str = "auto",
        beta: float | str = "auto",
        members: int = 4,
        epochs: int | str = "auto",
        batch_size: int | str = "auto",
        learning_rate: float | str = "auto",
        weight_decay: float = 1e-2,
        validation_fraction: float | str = "auto",
        patience: int | str = "auto",
        calibrate: bool | str = "auto",
        dtype: str = "auto",
        device: str = "auto",
        compile: bool | str = "auto",
        random_state: int | np.random.RandomState | None = None,
        verbose: bool = False,
    ) -> None:
        self.method = method
        self.recipe = recipe
        self.objective = objective
        self.rank = rank
        self.width = width
        self.blocks = blocks
        self.inner = inner
        self.embedding = embedding
        self.trend = trend
        self.alpha = alpha
        self.beta = beta
        self.members = members
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.calibrate = calibrate
        self.dtype = dtype
        self.device = device
        self.compile = compile
        self.random_state = random_state
        self.verbose = verbose

    # ---- fitting -----------------------------------------------------------------------------------------------

    def fit(
        self,
        X: Any,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        groups: ArrayLike | None = None,
        X_val: Any = None,
        y_val: ArrayLike | None = None,
    ) -> Self:
        """Fit to a table X (array or DataFrame) and a target y; validate on X_val, y_val if given.

        A row of `sample_weight` k counts as k rows: weights that are no counts (areas, 1 / variance) should have a mean
        of 1, or the model takes itself to have seen more rows than there are. Rows of one value of `groups` (a patient,
        a site) are held out together, so that selection and calibration are for new groups.
        """
        self._check_parameters()
        check_objective(self)
        # A fit that fails leaves what there was before.
        return self._take_over(copy(self)._fit_table(X, y, sample_weight, groups, X_val, y_val, How()))

    def fit_dataset(
        self,
        data: Any,
        target: str,
        *,
        weight: str | None = None,
        groups: str | None = None,
        drop: Collection[str] = (),
        validation: Any = None,
        memory: int | str | None = None,
        stream: bool | None = None,
        max_steps: int | None = None,
        checkpoint: str | PathLike[str] | None = None,
        team: Team = ALONE,
    ) -> Self:
        """Fit to a table in files, of any size: a folder, a pattern, a list of files or a pyarrow data set.

        The files are Parquet or CSV and have the same columns: `target`, perhaps `weight` and `groups`, and inputs, of
        which those in `drop` are left out. `memory` ("2GiB") is what the whole process may use. A table that does not
        fit is streamed: two readings of the files, a first for its statistics. `stream` forces that, or forbids it.
        Streamed rows are held out for validation by a hash of their place, or of their group; or `validation` is
        another such table. `max_steps` bounds the training steps. With `checkpoint` a run that was stopped goes on from
        there; where members hold out different rows each part has steps and a file of its own, `checkpoint`.1, .2, ...
        Every worker of a `team` makes the same call, and reads its part; `memory` is what each may use.
        """
        self._check_parameters()
        check_objective(self)
        limit = parse_memory(memory)
        how = How(None if max_steps is None else check_positive_int("max_steps", max_steps), checkpoint, team)
        if checkpoint is not None and self.random_state is None:
            raise InputError("checkpoint needs a random_state (--seed): a run goes on only as the same run")
        devices.present(self.device)
        source = Source.open(data, drop=drop)
        roles = Roles.of(source, target, weight, groups)
        aside = None
        if validation is not None:
            aside = Source.open(validation, [*roles.features, roles.target], text=source.text_columns())
        if stream is None:  # workers may have different memories, and must do the same
            stream = team.agree(not fits_in_memory(source.rows, source.row_bytes(), limit))
        fitted = copy(self)
        if stream:
            return self._take_over(fitted._fit_streamed(source, roles, aside, limit, how))
        table = roles.parts(source)
        beside = None if aside is None else roles.for_validation().parts(aside)
        X_val, y_val = (None, None) if beside is None else (beside.X, beside.y)
        return self._take_over(fitted._fit_table(table.X, table.y, table.weight, table.groups, X_val, y_val, how))

    def _fit_table(self, X: Any, y: Any, sample_weight: Any, groups: Any, X_val: Any, y_val: Any, how: How) -> Self:
        devices.present(self.device)
        if (X_val is None) != (y_val is None):
            raise InputError("X_val and y_val go together: give both or neither")
        table = Table.read(X, y, sample_weight, groups)
        self.n_features_in_ = len(table.columns)
        if table.names is not None:
            self.feature_names_in_ = np.array(table.names, dtype=object)
        elif hasattr(self, "feature_names_in_"):  # of an earlier fit
            del self.feature_names_in_
        self.rows_ = len(table)
        table = table.weighted()
        folds_wanted = folds_of(self, len(table.y))
        whole = Preprocessor.fit(table.names, table.columns, table.weight)
        if X_val is not None and y_val is not None:
            splits = [(table, Table.for_validation(X_val, y_val, whole))]
        else:
            labels = row_labels(whole.encoded(table.columns), table.groups)
            if folds_wanted > 1:
                masks = fold_masks(labels, table.weight, folds_wanted)
            else:
                masks = [held_out_mask(labels, table.weight, fraction_of(self))]
            splits = [table.without(mask) for mask in masks]
        known = splits[0][0] if len(splits) == 1 else table  # what some member is fitted to
        if known is table:
            self.preprocessor_ = whole
        else:
            self.preprocessor_ = Preprocessor.fit(known.names, known.columns, known.weight, within=table.columns)
        self._doubt_columns(known)
        self.target_ = TargetScaler.fit(known.y, known.weight)
        dtype = make_plan(self, len(known.y)).settings.dtype
        folds = []
        for inside, outside in splits:
            data = self._rows(inside, dtype)
            try:
                held_out = self._rows(outside, dtype)
            except InputError as error:
                raise error if X_val is None else InputError(f"X_val: {error}") from None
            folds.append(Fold(data, held_out, self._with_fair_say(held_out)))
        trials = candidates(self, len(table.y), self.preprocessor_.width, table.groups is not None)
        # Kernels have all rows; where there are none to try, a large table is not held in memory twice.
        everything = self._rows(table, dtype) if X_val is None and len(trials) > 1 else folds[0].data
        small = len(table.y) <= ONE_THREAD_ROWS and devices.named(self.device).type == "cpu"
        with devices.one_thread() if small else nullcontext():
            predicted, held_out, interrupted = fit_best(self, trials, everything, folds, how)
            if interrupted:
                warnings.warn(_INTERRUPTED, FitWarning, stacklevel=3)
            y_known = torch.from_numpy(self.target_.transform(known.y)).to(dtype)
            weight = None if known.weight is None else torch.from_numpy(known.weight).to(dtype)
            mean = weighted_mean(y_known, weight)
            self._look_at(predicted, held_out, mean, weighted_mean((y_known - mean).square(), weight))
        return self

    def _doubt_columns(self, table: Table) -> None:
        for label, cell in self.preprocessor_.numbers_as_text(table.columns):
            warnings.warn(
                f"{label} holds text that mostly reads as numbers, but for cells such as {cell!r}: it is taken for "
                "categories; if it is meant as numbers, leave such cells empty, or convert it with "
                "pandas.to_numeric(errors='coerce')",
                FitWarning,
                stacklevel=4,
            )

    def _take_over(self, fitted: Self) -> Self:
        """Everything that a fit gives; what it has taken away from a copy of this, such as names, goes here too."""
        for name in [name for name in vars(self) if name.endswith("_")]:
            delattr(self, name)
        self.__dict__.update({name: value for name, value in vars(fitted).items() if name.endswith("_")})
        return self

    def _settle(self, rows: int) -> None:
        """What the model is to be, for so many rows to fit."""
        self.method_, self.rank_, self.inner_ = method_of(self.method), int(self.rank), inner_of(self, rows)
        self.embedding_, self.jitter_ = embedding_of(self, self.preprocessor_, rows), jitter_of(self)

    def _fit_rows(self, data: Rows, validation: Rows, how: How) -> bool:
        """True if it was interrupted."""
        plan = make_plan(self, len(data), max_steps=how.max_steps)
        if how.max_steps is not None and plan.steps > how.max_steps:
            warnings.warn(
                f"max_steps={how.max_steps} is less than one pass over the {len(data)} rows to fit, of {plan.steps} "
                "steps, which a fit in memory makes: take larger batches, or a stream, which may end sooner",
                FitWarning,
                stacklevel=6,
            )
        self._settle(len(data))
        if self._starts_at_rows():
            self.rank_ = min(self.rank_, distinct_rows(data))
        line = self._line(data, how)
        self.trend_ = trend_of(self, len(data), line)
        members = self._members(plan, line, how)
        chosen, interrupted = self._train(data, validation, plan, members, how)
        if not interrupted and how.max_steps is None:
            chosen, interrupted = self._with_little_noise(chosen, data, validation, plan, members, how)
        self._keep(chosen, validation, plan)
        return interrupted

    def _with_little_noise(
        self, chosen: list[Outcome], data: Rows, validation: Rows, plan: Plan, members: list[Member], how: How
    ) -> tuple[list[Outcome], bool]:
        """A shallow kernel whose noise still falls is trained again; the first stands if that does not end well."""
        fall = max(math.log(one.member.noise / float(one.history["noise"][-1])) for one in chosen)
        if not how.team.broadcast_object(noise_still_falls(self, plan, fall)):
            return chosen, False
        again = for_little_noise(self, plan)
        try:
            found, interrupted = self._train(data, validation, again, members, replace(how, checkpoint=None))
        except UnfinishedError:
            return chosen, True
        except NumericalError:
            return chosen, False
        ended_well = not interrupted and len(found) == len(chosen) and all(one.status != FAILED for one in found)
        return found if ended_well else chosen, interrupted

    def _fit_streamed(self, source: Source, roles: Roles, aside: Source | None, limit: int | None, how: How) -> Self:
        """The statistics first, then training on a stream of batches."""
        if aside is not None and self.trend == "linear":
            raise InputError(
                "trend='linear' draws its line through the rows that a streamed fit holds out, and with validation "
                "rows of their own none are held out: leave one of the two out, or the stream"
            )
        survey = streaming.take_survey(
            source, roles, fraction_of(self) if aside is None else None, limit, how.team, self.verbose
        )
        self.preprocessor_, self.target_ = survey.preprocessor(), survey.statistics.target()
        self.n_features_in_, self.feature_names_in_ = len(roles.features), np.array(roles.features, dtype=object)
        self.rows_ = source.rows
        self._settle(survey.statistics.rows)
        plan = make_plan(self, survey.statistics.rows, streamed=True, max_steps=how.max_steps)
        encoder = survey.encoder(self.preprocessor_, self.target_, plan.settings.dtype)
        validation = survey.validation(encoder) if aside is None else streaming.all_rows(aside, encoder, limit)
        judges = self._with_fair_say(validation)
        line = self._line(validation, how)
        # Rows of another table may lie elsewhere, and have other slopes.
        self.trend_ = trend_of(self, survey.statistics.rows, line if aside is None else None)
        members = self._members(plan, line, how)
        model = self._build(members[0])
        room = streaming.room_for(plan, model, len(members), validation, encoder, source, limit, how.team)
        with survey.stream(encoder, plan, room.sizes, members[0].seed, how.team) as data:
            chosen, interrupted = self._train(data, judges, plan, members, replace(how, wave_size=room.members))
        if interrupted:
            warnings.warn(_INTERRUPTED, FitWarning, stacklevel=3)
        self._keep(chosen, judges, plan)
        self._calibrated(self.ensemble_.predict(judges.x), judges)
        spread = torch.as_tensor(survey.statistics.target_moments.std / self.target_.scale, dtype=validation.y.dtype)
        predicted = self.ensemble_.predict(validation.x)
        self._look_at(predicted, validation, torch.zeros_like(spread), spread.square())
        return self

    def _rows(self, table: Table, dtype: torch.dtype) -> Rows:
        """Preprocessed, scaled, and as tensors."""

        def tensor(array: NDArray[np.float64]) -> Tensor:
            return torch.from_numpy(array).to(dtype)

        x = self.preprocessor_.encoded(table.columns)
        weight = None if table.weight is None else tensor(table.weight)
        return Rows(tensor(x), tensor(self.target_.transform(table.y)), weight)

    def _with_fair_say(self, validation: Rows) -> Rows:
        """The rows as they select and calibrate; they are scored as they are."""
        return fair_say(validation, RECIPES[self.recipe].most_say)

    def _build(self, member: Member) -> DeepBasisGP:
        return build(
            self.method_,
            self.preprocessor_.width,
            rank=self.rank_,
            width=int(self.width),
            blocks=int(self.blocks),
            inner=self.inner_,
            embedding=self.embedding_,
            noise=member.noise,
            slope=member.slope,
            jitter=self.jitter_,
            seed=member.seed,
        )

    def _starts_at_rows(self) -> bool:
        return METHODS[self.method_].backbone == "identity" and RECIPES[self.recipe].start_from_data

    def _line(self, rows: Rows, how: How) -> Line | None:
        """Through these rows, where something starts from it; the same for every worker."""
        wanted = RECIPES[self.recipe].start_from_data or self.trend == "linear"
        return how.team.broadcast_object(straight_line(rows)) if wanted else None

    def _members(self, plan: Plan, line: Line | None, how: How) -> list[Member]:
        """All seeds for each candidate (alpha, beta), the same for every worker."""
        noise = Member().noise
        if line is not None and RECIPES[self.recipe].start_from_data:
            noise = float(f"{starting_noise(line):.3g}")  # the last digits depend on threads, and a checkpoint on all
        slopes = slopes_by_turns(line, self.trend_)
        seeds = how.team.broadcast_object([int(seed) for seed in self._seeds()])
        return [
            Member(seed=seed, alpha=a, beta=b, noise=noise, slope=slope)
            for a, b in plan.pairs
            for seed, slope in zip(seeds, cycle(slopes), strict=False)
        ]

    def _train(
        self, data: Rows | Stream, validation: Rows, plan: Plan, members: list[Member], how: How
    ) -> tuple[list[Outcome], bool]:
        """Every member in one run: the ensemble of the pair (alpha, beta) with the best mean score; if interrupted."""
        rows = data if isinstance(data, Rows) else validation
        with ProgressBar() if self.verbose and how.team.first else nullcontext() as bar:
            outcomes = train(
                at_rows(self._build, rows) if self._starts_at_rows() else self._build,
                members,
                data,
                validation,
                plan.settings,
                device=plan.device,
                progress=bar,
                checkpoint=how.checkpoint,
                wave_size=how.wave_size,
                team=how.team,
            )
        seeds = len(members) // len(plan.pairs)
        teams = [outcomes[k : k + seeds] for k in range(0, len(outcomes), seeds)]
        usable = min(
            ([outcome for outcome in team if outcome.best_epoch > 0] for team in teams), key=_failed_then_score
        )
        interrupted = any(outcome.status == "interrupted" for outcome in outcomes)
        if not usable and interrupted:
            raise UnfinishedError("the fit was interrupted before its first epoch had ended")
        if not usable:
            reasons = sorted({outcome.reason or outcome.status for outcome in outcomes})
            raise NumericalError(f"no member could be trained: {'; '.join(reasons)}; try a smaller learning_rate")
        return usable, interrupted

    def _seeds(self) -> NDArray[np.int64]:
        if self.random_state is None:
            return np.random.default_rng().integers(2**31, size=self.members)  # the global state stays as it was
        if isinstance(self.random_state, int | np.integer):
            return np.random.default_rng(int(self.random_state)).integers(2**31, size=self.members)
        return check_random_state(self.random_state).randint(2**31 - 1, size=self.members)

    def _keep(self, chosen: list[Outcome], validation: Rows, plan: Plan) -> None:
        self.alpha_, self.beta_ = chosen[0].member.alpha, chosen[0].member.beta
        self.history_ = [{k: v.numpy() for k, v in outcome.history.items()} for outcome in chosen]
        self._set_models([outcome.model(self._build) for outcome in chosen], plan.settings.dtype, plan.device)
        if plan.settings.objective == "mse":
            self._give_residual_variance(validation)

    def _set_models(
        self,
        models: list[DeepBasisGP],
        dtype: torch.dtype,
        device: torch.device,
        calibration: Calibration | None = None,
    ) -> None:
        self.models_, self.calibration_ = models, calibration
        corrected = METHODS[self.method_].corrected
        self.ensemble_ = Ensemble(models, corrected=corrected, calibration=calibration, device=device, dtype=dtype)
        self.noise_ = np.array([model.noise().item() for model in models]) * self.target_.scale**2

    @torch.no_grad()
    def _give_residual_variance(self, validation: Rows) -> None:
        """A DNN has no variance of its own: each member predicts with that of its validation residuals."""
        for model, mean in zip(self.models_, self.ensemble_.predict(validation.x).means, strict=True):
            squared = (validation.y - mean).square()
            variance = max(float(weighted_mean(squared, validation.weight)), 2.0 * NOISE_FLOOR)
            model.noise.raw.fill_(math.log(variance - NOISE_FLOOR))
        self._set_models(self.models_, validation.x.dtype, self.ensemble_.stack.device)

    def _calibrated(self, predicted: GaussianMixture, held_out: Rows) -> GaussianMixture:
        """What is predicted for rows held out, calibrated on these, as the ensemble is from here on if it is to be.

        The same at every worker: each has all rows held out.
        """
        if not wants_calibration(self):
            return predicted
        found = calibrate(predicted, held_out.y, held_out.weight)
        self._set_models(self.models_, held_out.x.dtype, self.ensemble_.stack.device, found)
        return found.apply(predicted)

    def _take_in(self, rows: Rows) -> None:
        """The posterior of exact inference, given these rows."""
        for model in self.models_:
            exact.fit_posterior(model, lambda: [(rows.x, rows.y, rows.weight)])
        self._set_models(self.models_, rows.x.dtype, self.ensemble_.stack.device, self.calibration_)

    def _look_at(self, predicted: GaussianMixture, validation: Rows, mean: Tensor, variance: Tensor) -> None:
        self.validation_, doubt = looked_at(predicted, validation, mean, variance, self.target_)
        if doubt:
            warnings.warn(doubt, FitWarning, stacklevel=4)

    # ---- files -------------------------------------------------------------------------------------------------

    def save(self, path: str | PathLike[str]) -> None:
        """Write everything needed to predict to one .safetensors file, atomically and without pickle."""
        check_is_fitted(self)
        persistence.save(self, path)

    @classmethod
    def load(cls, path: str | PathLike[str], device: str = "auto") -> "DeepBasisRegressor":
        """A regressor saved by this release or an earlier one. No code of the file is run."""
        loaded: DeepBasisRegressor = persistence.load(cls, path, devices.present(device))
        return loaded

    # ---- the rest ----------------------------------------------------------------------------------------------

    def _check_parameters(self) -> None:
        check_arguments(self)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags


def _failed_then_score(usable: list[Outcome]) -> tuple[int, float]:
    """The order of ensembles of one size: first those of which fewer members failed, then by their mean score."""
    return -len(usable), float(np.mean([outcome.best_score for outcome in usable])) if usable else math.inf
