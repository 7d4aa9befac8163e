"""`DeepBasisRegressor`: the scikit-learn face of the engine. It saves and loads through `storage.py`."""

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from os import PathLike
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils import _safe_indexing, check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from deepbasis import __version__, storage
from deepbasis.engine.batches import Rows
from deepbasis.engine.checkpoint import HISTORY
from deepbasis.engine.members import Ensemble, Member
from deepbasis.engine.progress import ProgressBar
from deepbasis.engine.settings import EXACT, Settings
from deepbasis.engine.training import Outcome, train
from deepbasis.errors import (
    FileFormatError,
    InputError,
    NumericalError,
    check_choice,
    check_number,
    check_positive_int,
)
from deepbasis.gp import metrics
from deepbasis.gp.methods import METHODS, OBJECTIVES, build
from deepbasis.gp.model import NOISE_FLOOR, DeepBasisGP
from deepbasis.gp.objectives import weighted_mean
from deepbasis.gp.predictive import Gaussian, GaussianMixture
from deepbasis.recipes import FLOAT64_ROWS, RECIPES, epochs_for, objective_of, weights_for
from deepbasis.tables.preprocessing import Preprocessor, TargetScaler, check_target, check_weight, row_groups

KIND = "regressor"

_PREDICT_ROWS = 65_536  # transformed and predicted at a time
_HEALTH_ROWS = 30  # fewer validation rows say nothing
_COMPILE_STEPS = 3_000  # from here on compiling pays on a GPU


class FitWarning(UserWarning):
    """The fit ended, but something about it should be looked at."""


@dataclass(frozen=True)
class _Plan:
    """What "auto" came to for the table at hand."""

    settings: Settings
    pairs: list[tuple[float, float]]
    device: torch.device


@dataclass(frozen=True)
class _Table:
    """A checked table: X (a DataFrame or an array) with a target, and perhaps a weight and a group, for each row."""

    X: Any
    y: NDArray[np.float64]
    weight: NDArray[np.float64] | None = None
    groups: NDArray[Any] | None = None

    def rows(self, index: NDArray[np.int64]) -> "_Table":
        picked = [None if part is None else part[index] for part in (self.weight, self.groups)]
        return _Table(_safe_indexing(self.X, index), self.y[index], *picked)


class DeepBasisRegressor(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """Regression with a predictive distribution for every row, by Gaussian processes with deep basis kernels.

    Parameters
    ----------
    method : "dbk-silu", "dbk-rbf", "vbll", "sv-dkl", "pp-dkl", "sv-rbf" or "dnn", the paper's methods. A DNN has no
        distribution of its own: it predicts with the variance of its validation residuals.
    recipe : what "auto" means: "default", or "paper" for the paper's settings.
    objective : None is the method's own; "mml" trains exactly, by the marginal likelihood of all rows.
    rank, width, blocks : basis functions; width and residual blocks of the network.
    alpha, beta : weights of the trace and KL regularisers, or "auto": chosen by the validation NLL, among candidates
        that are all trained together.
    members : models in the ensemble, which predicts as their equal mixture.
    epochs, batch_size, learning_rate, patience : numbers, or "auto": the recipe's for this many rows.
    validation_fraction : share of the rows held out for early stopping and selection. Identical rows, and rows of one
        group, are never on both sides.
    dtype : "float32", "float64", or "auto": float64 for small tables.
    device : "cpu", "cuda", ..., or "auto": a GPU if there is one.
    compile : whether to use torch.compile, or "auto": on a GPU, for long fits.
    random_state : None, an integer or a numpy RandomState.
    verbose : whether to draw a progress bar, on a terminal.

    Attributes
    ----------
    history_ : for each member a dict of "train_loss", "validation" and "noise" (standardised units), a number an epoch.
    validation_ : metrics of the ensemble on the validation rows, in the target's units.
    noise_ : noise variance of each member, in squared units of the target.
    alpha_, beta_ : the weights used.
    """

    def __init__(
        self,
        *,
        method: str = "dbk-silu",
        recipe: str = "default",
        objective: str | None = None,
        rank: int = 128,
        width: int = 64,
        blocks: int = 2,
        alpha: float | str = "auto",
        beta: float | str = "auto",
        members: int = 4,
        epochs: int | str = "auto",
        batch_size: int | str = "auto",
        learning_rate: float | str = "auto",
        weight_decay: float = 1e-2,
        validation_fraction: float = 0.1,
        patience: int | str = "auto",
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
        self.alpha = alpha
        self.beta = beta
        self.members = members
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.validation_fraction = validation_fraction
        self.patience = patience
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
        """Fit to a table X (array or DataFrame) and a target y; validate on X_val, y_val if given."""
        self._check_parameters()
        _check_device(self.device)
        if (X_val is None) != (y_val is None):
            raise InputError("X_val and y_val go together: give both or neither")
        table = self._checked_table(X, y, sample_weight, groups)
        if X_val is not None and y_val is not None:
            inside, outside = table, _validation_table(X_val, y_val)
        else:
            inside, outside = self._split(table)
        self.preprocessor_ = Preprocessor.fit(inside.X, inside.weight)
        self.target_ = TargetScaler.fit(inside.y, inside.weight)
        plan = self._plan(len(inside.y))
        data = self._rows(inside, plan)
        try:
            validation = self._rows(outside, plan)
        except InputError as error:
            raise error if X_val is None else InputError(f"X_val: {error}") from None
        self._keep(self._train(data, validation, plan), validation, plan)
        self._look_at(data, validation)
        return self

    def _checked_table(
        self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None, groups: ArrayLike | None
    ) -> "_Table":
        """Everything of one length, without the rows of weight 0."""
        if y is None:
            raise InputError("fit needs a target: requires y to be passed, but the target y is None")
        X = Preprocessor.check(X)
        target = check_target(y)
        validate_data(self, X, skip_check_array=True)
        rows = len(X)
        if rows != len(target):
            raise InputError(f"X has {rows} rows but y has {len(target)}: inconsistent numbers of samples")
        weight = None if sample_weight is None else check_weight(sample_weight, rows)
        labels = None if groups is None else np.asarray(groups)
        if labels is not None and labels.shape != (rows,):
            raise InputError(f"groups must be one label per row, [{rows}], got shape {list(labels.shape)}")
        table = _Table(X, target, weight, labels)
        if weight is not None:
            table = table.rows(np.flatnonzero(weight > 0))
        if len(table.y) < 2:
            raise InputError(f"a fit needs at least 2 rows, got n_samples = {len(table.y)} (1 sample is not enough)")
        return table

    def _split(self, table: "_Table") -> tuple["_Table", "_Table"]:
        """Rows to train on and rows to validate on.

        Which rows are held out depends on what stands in them, not on where they stand: the same rows in another order,
        or a row of weight 2 in place of two equal rows, give the same split.
        """
        numbers = Preprocessor.fit(table.X, table.weight).transform(table.X)
        labels = row_groups(numbers, table.groups)
        mass = np.bincount(labels, table.weight).cumsum()  # labels are in the order of a hash of what they stand for
        held_out = 1 + int(np.searchsorted(mass, self.validation_fraction * mass[-1] * (1.0 - 1e-12)))
        held_out = min(held_out, len(mass) - 1)
        if held_out == 0:  # one group alone: there is nothing to hold out
            return table, table
        outside = labels < held_out
        return table.rows(np.flatnonzero(~outside)), table.rows(np.flatnonzero(outside))

    def _plan(self, rows: int) -> _Plan:
        recipe = RECIPES[self.recipe]
        objective = objective_of(self.method, self.objective)
        batch_size = self.batch_size
        if batch_size == "auto":
            batch_size = rows if rows <= recipe.full_batch_rows else recipe.batch_size
        epochs = self.epochs
        if epochs == "auto":
            epochs = epochs_for(recipe, rows, int(batch_size), objective == EXACT)
        patience = max(1, round(recipe.patience_share * int(epochs))) if self.patience == "auto" else self.patience
        precision = self.dtype
        if precision == "auto":
            precision = "float64" if rows <= FLOAT64_ROWS else "float32"
        steps = int(epochs) * -(-rows // int(batch_size))
        device = _device(self.device)
        on_gpu = device.type == "cuda"
        settings = Settings(
            objective=objective,
            corrected=METHODS[self.method].corrected,
            epochs=int(epochs),
            batch_size=int(batch_size),
            learning_rate=recipe.learning_rate if self.learning_rate == "auto" else float(self.learning_rate),
            noise_learning_rate=recipe.noise_learning_rate,
            weight_decay=self.weight_decay,
            schedule=recipe.schedule,
            patience=int(patience),
            precision=precision,
            compile=on_gpu and steps >= _COMPILE_STEPS if self.compile == "auto" else bool(self.compile),
        )
        return _Plan(settings, weights_for(recipe, objective, self.alpha, self.beta), device)

    def _rows(self, table: "_Table", plan: _Plan) -> Rows:
        """Preprocessed, scaled, and as tensors."""

        def tensor(array: NDArray[np.float64]) -> Tensor:
            return torch.from_numpy(array).to(plan.settings.dtype)

        x = self.preprocessor_.transform(table.X)
        weight = None if table.weight is None else tensor(table.weight)
        return Rows(tensor(x), tensor(self.target_.transform(table.y)), weight)

    def _build(self, member: Member) -> DeepBasisGP:
        return build(
            self.method,
            self.preprocessor_.width,
            rank=int(self.rank),
            width=int(self.width),
            blocks=int(self.blocks),
            noise=member.noise,
            seed=member.seed,
        )

    def _train(self, data: Rows, validation: Rows, plan: _Plan) -> list[Outcome]:
        """All seeds and all candidates in one run; the ensemble of the pair (alpha, beta) with the best mean score."""
        seeds = [int(seed) for seed in self._seeds()]
        members = [Member(seed=seed, alpha=a, beta=b) for a, b in plan.pairs for seed in seeds]
        with ProgressBar() if self.verbose else nullcontext() as bar:
            outcomes = train(self._build, members, data, validation, plan.settings, device=plan.device, progress=bar)
        teams = [outcomes[k : k + len(seeds)] for k in range(0, len(outcomes), len(seeds))]
        best = min(teams, key=lambda team: np.mean([outcome.best_score for outcome in team]))
        usable = [outcome for outcome in best if outcome.best_epoch > 0]
        if not usable and any(outcome.status == "interrupted" for outcome in outcomes):
            raise KeyboardInterrupt("the fit was interrupted before its first epoch had ended")
        if not usable:
            reasons = sorted({outcome.reason or outcome.status for outcome in outcomes})
            raise NumericalError(f"no member could be trained: {'; '.join(reasons)}; try a smaller learning_rate")
        if any(outcome.status == "interrupted" for outcome in outcomes):
            warnings.warn("the fit was interrupted: this is the best so far", FitWarning, stacklevel=3)
        return usable

    def _seeds(self) -> NDArray[np.int64]:
        if self.random_state is None:
            return np.random.default_rng().integers(2**31, size=self.members)  # the global state stays as it was
        if isinstance(self.random_state, int | np.integer):
            return np.random.default_rng(int(self.random_state)).integers(2**31, size=self.members)
        return check_random_state(self.random_state).randint(2**31 - 1, size=self.members)

    def _keep(self, chosen: list[Outcome], validation: Rows, plan: _Plan) -> None:
        self.alpha_, self.beta_ = chosen[0].member.alpha, chosen[0].member.beta
        self.history_ = [{k: v.numpy() for k, v in outcome.history.items()} for outcome in chosen]
        self._set_models([outcome.model(self._build) for outcome in chosen], plan.settings.dtype, plan.device)
        if plan.settings.objective == "mse":
            self._give_residual_variance(validation)

    def _set_models(self, models: list[DeepBasisGP], dtype: torch.dtype, device: torch.device) -> None:
        self.models_ = models
        corrected = METHODS[self.method].corrected
        self.ensemble_ = Ensemble(models, corrected=corrected, device=device, dtype=dtype)
        self.noise_ = np.array([model.noise().item() for model in models]) * self.target_.scale**2

    @torch.no_grad()
    def _give_residual_variance(self, validation: Rows) -> None:
        """A DNN has no variance of its own: each member predicts with that of its validation residuals."""
        for model in self.models_:
            squared = (validation.y - model(validation.x).mean).square()
            variance = max(float(weighted_mean(squared, validation.weight)), 2.0 * NOISE_FLOOR)
            model.noise.raw.fill_(math.log(variance - NOISE_FLOOR))
        self._set_models(self.models_, validation.x.dtype, self.ensemble_.stack.device)

    def _look_at(self, data: Rows, validation: Rows) -> None:
        """The health check: are the validation rows predicted better than by one constant Gaussian?"""
        predicted = self.ensemble_.predict(validation.x)
        weight = validation.weight
        scaled = predicted.affine(self.target_.scale, self.target_.mean)
        self.validation_ = metrics.evaluate(scaled, validation.y * self.target_.scale + self.target_.mean, weight)
        mean = weighted_mean(data.y, data.weight)
        variance = weighted_mean((data.y - mean).square(), data.weight).clamp_min(NOISE_FLOOR)
        constant = Gaussian(mean.expand_as(validation.y), variance.expand_as(validation.y))
        self.validation_["nll_constant"] = float(metrics.nll(constant, validation.y, weight)) + math.log(
            self.target_.scale
        )
        loss = constant.log_prob(validation.y) - predicted.log_prob(validation.y)
        if len(loss) >= _HEALTH_ROWS and loss.mean() > 2.0 * loss.std() / math.sqrt(len(loss)):
            warnings.warn(
                f"on the {len(loss)} validation rows this model's NLL is {float(loss.mean()):.3g} nats worse than that "
                "of a constant Gaussian: the inputs may say nothing about the target, or the fit went wrong; try more "
                "rows, a smaller learning_rate, a larger alpha, or another method",
                FitWarning,
                stacklevel=3,
            )

    # ---- prediction --------------------------------------------------------------------------------------------

    def predict_dist(self, X: Any) -> GaussianMixture:
        """The predictive distribution of every row, noise included, in the target's units."""
        parts = [self.ensemble_.predict(x) for x in self._chunks(X)]
        means, variances = (
            torch.cat(tensors, 1).double() for tensors in zip(*((p.means, p.variances) for p in parts), strict=True)
        )
        return GaussianMixture(means, variances).affine(self.target_.scale, self.target_.mean)

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """The mean of every row; with `return_std` also the standard deviation."""
        predicted = self.predict_dist(X)
        mean = predicted.mean.numpy()
        return (mean, predicted.std.numpy()) if return_std else mean

    def predict_interval(self, X: Any, coverage: float = 0.95) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Lower and upper end of the central interval that should hold `coverage` of the targets."""
        lower, upper = self.predict_dist(X).interval(check_number("coverage", coverage))
        return lower.numpy(), upper.numpy()

    def predict_quantiles(self, X: Any, q: ArrayLike) -> NDArray[np.float64]:
        """Quantiles at the levels q [k], as columns [n, k]."""
        given = np.atleast_1d(np.asarray(q, dtype=object))
        if given.ndim != 1 or len(given) == 0:
            raise InputError(f"q must be a level or a list of levels, got {q!r} of shape {given.shape}")
        levels = [_check_level(level) for level in given]
        predicted = self.predict_dist(X)
        return np.stack([predicted.quantile(level).numpy() for level in levels], 1)

    def sample_y(
        self, X: Any, n: int = 1, random_state: int | np.random.RandomState | None = None
    ) -> NDArray[np.float64]:
        """Draws of the target [rows, n], independent between rows."""
        n = check_positive_int("n", n)
        return self.predict_dist(X).sample(n, _generator(random_state)).T.numpy()

    def sample_functions(
        self, n: int = 1, random_state: int | np.random.RandomState | None = None
    ) -> Callable[[Any], NDArray[np.float64]]:
        """Draws of the noise-free function: X -> [rows, n]; the same n functions at every call."""
        check_is_fitted(self)
        check_positive_int("n", n)
        generator = _generator(random_state)
        models = [model.to("cpu") for model in self.models_]
        of_member = torch.randint(len(models), (n,), generator=generator)
        draws = [models[int(k)].sample_functions(1, generator=generator) for k in of_member]

        def functions(X: Any) -> NDArray[np.float64]:
            rows = [torch.stack([draw(x)[0] for draw in draws], 1) for x in self._chunks(X)]
            return torch.cat(rows).double().numpy() * self.target_.scale + self.target_.mean

        return functions

    def evaluate(self, X: Any, y: ArrayLike) -> dict[str, float]:
        """MAE, RMSE, NLL, CRPS, coverage and width of the 95 % interval, calibration error, in the target's units."""
        target = check_target(y)
        predicted = self.predict_dist(X)
        if len(predicted.mean) != len(target):
            raise InputError(f"X has {len(predicted.mean)} rows but y has {len(target)}: they must agree")
        return metrics.evaluate(predicted, torch.from_numpy(target))

    def _chunks(self, X: Any) -> Iterator[Tensor]:
        """The rows of X, ready for the models, some at a time."""
        check_is_fitted(self)
        for part in self.preprocessor_.chunks(X, _PREDICT_ROWS):
            yield torch.from_numpy(part).to(self.ensemble_.stack.dtype)

    # ---- files -------------------------------------------------------------------------------------------------

    def save(self, path: str | PathLike[str]) -> None:
        """Write everything needed to predict to one .safetensors file, atomically and without pickle."""
        check_is_fitted(self)
        arrays, preprocessing = self.preprocessor_.state()
        tensors = {f"preprocessor/{name}": torch.from_numpy(np.ascontiguousarray(a)) for name, a in arrays.items()}
        for k, model in enumerate(self.models_):
            tensors |= {f"member/{k}/{name}": value for name, value in model.state_dict().items()}
            tensors |= {f"history/{k}/{name}": torch.from_numpy(v) for name, v in self.history_[k].items()}
        parameters = {k: v.item() if isinstance(v, np.generic) else v for k, v in self.get_params().items()}
        if not isinstance(parameters["random_state"], int | None):
            parameters["random_state"] = None  # a generator's state is not part of the model
        names = getattr(self, "feature_names_in_", None)
        metadata = {
            "version": __version__,
            "parameters": parameters,
            "members": len(self.models_),
            "preprocessing": preprocessing,
            "target": self.target_.state(),
            "validation": self.validation_,
            "alpha": self.alpha_,
            "beta": self.beta_,
            "n_features": self.n_features_in_,
            "feature_names": None if names is None else [str(name) for name in names],
        }
        storage.save(path, KIND, tensors, metadata)

    @classmethod
    def load(cls, path: str | PathLike[str], device: str = "auto") -> "DeepBasisRegressor":
        """A regressor saved by this release or an earlier one. No code of the file is run."""
        _check_device(device)
        tensors, metadata = storage.load(path, KIND)
        try:
            return cls._from_file(tensors, metadata, _device(device))
        except (KeyError, TypeError, ValueError, RuntimeError, IndexError, AttributeError) as error:
            raise FileFormatError(f"{path} does not hold a regressor that this release understands: {error}") from error

    @classmethod
    def _from_file(
        cls, tensors: dict[str, Tensor], metadata: dict[str, Any], device: torch.device
    ) -> "DeepBasisRegressor":
        self = cls(**metadata["parameters"])
        self._check_parameters()
        arrays = {name: tensor.numpy() for name, tensor in _under("preprocessor/", tensors).items()}
        self.preprocessor_ = Preprocessor.from_state(arrays, metadata["preprocessing"])
        self.target_ = TargetScaler.from_state(metadata["target"])
        self.alpha_, self.beta_ = (check_number(name, metadata[name], at_least=0.0) for name in ("alpha", "beta"))
        self.validation_ = {str(k): check_number(k, v, at_least=-math.inf) for k, v in metadata["validation"].items()}
        columns, names = len(self.preprocessor_.encodings), self.preprocessor_.input_columns
        if (
            type(metadata["n_features"]) is not int
            or metadata["n_features"] != columns
            or metadata["feature_names"] != names
        ):
            raise ValueError("its columns are not those of its preprocessing")
        self.n_features_in_ = columns
        if names is not None:
            self.feature_names_in_ = np.array(names, dtype=object)
        members = check_positive_int("members", metadata["members"])
        parts = {tuple(name.split("/")[:2]) for name in tensors if not name.startswith("preprocessor/")}
        everyone = range(min(members, len(parts)))
        if len(parts) != 2 * members or parts != {(part, str(k)) for part in ("member", "history") for k in everyone}:
            raise ValueError(f"it says that it has {members} members, and has others")
        models = [self._restored(_under(f"member/{k}/", tensors)) for k in range(members)]
        self.history_ = [
            {name: _under(f"history/{k}/", tensors)[name].numpy() for name in HISTORY} for k in range(members)
        ]
        self._set_models(models, next(models[0].parameters()).dtype, device)
        return self

    def _restored(self, state: dict[str, Tensor]) -> DeepBasisGP:
        """A member's model from its parameters, which are looked at before anything of their size is made."""
        blocks = {name.split(".")[2] for name in state if name.startswith("backbone.blocks.")}
        if METHODS[self.method].backbone == "resnet" and len(blocks) != self.blocks:
            raise ValueError(f"{self.blocks} blocks were to be there, {len(blocks)} are")
        with torch.device("meta"):  # shapes without memory
            model = self._build(Member())
        dtype = state["mean"].dtype
        if dtype not in (torch.float32, torch.float64):
            raise ValueError(f"its parameters are {dtype}")
        expected = {name: (value.shape, dtype) for name, value in model.state_dict().items()}
        if expected != {name: (value.shape, value.dtype) for name, value in state.items()}:
            raise ValueError("its parameters are not those of its method and sizes")
        if not all(bool(value.isfinite().all()) for value in state.values()):
            raise ValueError("it has parameters that are not finite")
        model.load_state_dict(state, assign=True)
        return model

    # ---- the rest ----------------------------------------------------------------------------------------------

    def _check_parameters(self) -> None:
        check_choice("method", self.method, METHODS)
        check_choice("recipe", self.recipe, RECIPES)
        if self.objective is not None:
            check_choice("objective", self.objective, {*OBJECTIVES, EXACT})
            if self.method == "dnn" and self.objective != "mse":
                raise InputError(
                    "method 'dnn' has no distribution over its weights: objective must be 'mse' or None, got "
                    f"{self.objective!r}"
                )
        for name in ("rank", "width", "blocks", "members"):
            check_positive_int(name, getattr(self, name))
        for name in ("epochs", "batch_size", "patience"):
            if not _is_auto(getattr(self, name)):
                check_positive_int(name, getattr(self, name))
        for name in ("alpha", "beta"):
            if not _is_auto(getattr(self, name)):
                check_number(name, getattr(self, name), at_least=0.0)
        if not _is_auto(self.learning_rate):
            check_number("learning_rate", self.learning_rate, above=0.0)
        check_number("weight_decay", self.weight_decay, at_least=0.0)
        if not 0.0 < check_number("validation_fraction", self.validation_fraction) < 1.0:
            raise InputError(f"validation_fraction must lie strictly between 0 and 1, got {self.validation_fraction!r}")
        _device_named(self.device)
        check_choice("dtype", self.dtype, {"auto", "float32", "float64"})
        if not _is_auto(self.compile) and not isinstance(self.compile, bool | np.bool_):
            raise InputError(f"compile must be True, False or 'auto', got {self.compile!r}")
        if not (self.random_state is None or isinstance(self.random_state, np.random.RandomState)):
            _check_seed("random_state", self.random_state)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags


def _validation_table(X_val: Any, y_val: ArrayLike) -> _Table:
    y = check_target(y_val, "y_val")
    try:
        X = Preprocessor.check(X_val)
    except InputError as error:
        raise InputError(f"X_val: {error}") from None
    if len(X) != len(y):
        raise InputError(f"X_val has {len(X)} rows but y_val has {len(y)}: they must agree")
    return _Table(X, y)


def _check_level(level: Any) -> float:
    if not 0.0 < check_number("q", level) < 1.0:
        raise InputError(f"a quantile's level q must lie strictly between 0 and 1, got {level!r}")
    return float(level)


def _is_auto(value: Any) -> bool:
    return isinstance(value, str) and value == "auto"


def _check_seed(name: str, seed: Any) -> int:
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed < 2**32:
        raise InputError(f"{name} must be None, an integer from 0 to 2^32 - 1, or a numpy RandomState, got {seed!r}")
    return int(seed)


def _device_named(name: Any) -> torch.device:
    """The device, whether or not it is there."""
    try:
        device = _device(name)
    except (RuntimeError, TypeError):
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda"):
        raise InputError(f"device must be 'auto', 'cpu', 'cuda' or 'cuda:K', got {name!r}")
    return device


def _check_device(name: Any) -> None:
    device = _device_named(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise InputError(
            f"device {name!r} was asked for, but torch sees no CUDA device of that number here; use 'cpu' or 'auto'"
        )


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(name)


def _generator(seed: int | np.random.RandomState | None) -> torch.Generator:
    generator = torch.Generator()
    if seed is None:
        generator.seed()
    elif isinstance(seed, np.random.RandomState):
        generator.manual_seed(int(seed.randint(2**31 - 1)))
    else:
        generator.manual_seed(_check_seed("random_state", seed))
    return generator


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
