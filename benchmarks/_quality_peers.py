"""The models of the quality benchmark: ours, and what a user would take instead.

Every model is given a `Fold` and a seed, and answers with a predictive distribution in the fold's units. All of them
may use the training and the validation rows, and no other: those that stop early or select do it on the validation
rows. scikit-learn's GP, which does neither, is fitted to both, and so is ours on small tables, where it holds out a
tenth of its own choice. No option depends on the data set, but for the number of rows.
"""

from __future__ import annotations

import copy
import math
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import lru_cache, partial
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state

from _quality_data import Fold
from _quality_model import BATCH, LEARNING_RATE, WIDTH, Effort, Model, Trained
from _quality_quantiles import QUANTILE_MODELS
from _quality_simple import SIMPLE_MODELS
from deepbasis import DeepBasisRegressor
from deepbasis.errors import FitWarning, NumericalError
from deepbasis.fitting.recipe import RECIPES
from deepbasis.gp import metrics
from deepbasis.gp.backbone import ResNet
from deepbasis.gp.calibration import calibrate
from deepbasis.gp.predictive import Gaussian, GaussianMixture, gaussian_nll

# ---- ours ----------------------------------------------------------------------------------------------------------


def fit_deepbasis(arguments: Mapping[str, Any], fold: Fold, seeds: Sequence[int], effort: Effort) -> list[Trained]:
    (seed,) = seeds
    model = DeepBasisRegressor(**arguments, random_state=seed, device=str(effort.device))
    if effort.limit is not None:
        model.set_params(epochs=effort.limit, recipe=_limited(model.recipe, effort.limit))
    (X, y), (X_val, y_val) = ((side.x.numpy(), side.y.numpy()) for side in (fold.train, fold.validation))
    if fold.own is not None:
        y, y_val = fold.own.train, fold.own.validation
    with warnings.catch_warnings():
        if effort.limit is not None:
            warnings.simplefilter("ignore", FitWarning)  # a fit of three epochs is bad, and is meant to be
        # On a small table it may take in the rows that it holds out, if these are of its own choice.
        if len(y) + len(y_val) <= RECIPES[model.recipe].small_rows:
            model.fit(np.concatenate([X, X_val]), np.concatenate([y, y_val]))
        else:
            model.fit(X, y, X_val=X_val, y_val=y_val)
    best = [int(np.argmin(history["validation"])) + 1 for history in model.history_]
    return [Trained(lambda x: model.predict_dist(x.numpy(), as_tensor=True), float(np.mean(best)), in_own_units=True)]


def _limited(recipe: str, steps: int) -> str:
    """The name of a recipe like this one, by which shallow kernels too are trained for so many steps only."""
    name = f"{recipe}, {steps} steps"
    if name not in RECIPES:
        RECIPES.register(name, replace(RECIPES[recipe], exact_steps=steps))
    return name


def _ours(name: str, what: str, **arguments: Any) -> Model:
    """Its recipe is among its options: a part that an older default made is not taken for today's."""
    parameters = DeepBasisRegressor(**arguments).get_params()
    for not_of_the_method in ("device", "compile", "random_state", "verbose"):
        del parameters[not_of_the_method]
    options = {**parameters, "recipe": {"name": parameters["recipe"], **asdict(RECIPES[parameters["recipe"]])}}
    return Model(name, what, partial(fit_deepbasis, arguments), options, with_earlier=True)


# ---- neural peers --------------------------------------------------------------------------------------------------

FEWEST_STEPS = 4_000
"""An epoch of a small table is one step: without this its models would be left untrained."""

GPYTORCH: Mapping[str, Any] = MappingProxyType(
    {
        "width": WIDTH,
        "inducing": 128,
        "batch": BATCH,
        "learning_rate": LEARNING_RATE,
        # NOTE[DIFF]: GPyTorch starts at 0.69, and at 1e-3 needs 4,000 steps to come down from there to 0.01. On pol's
        # validation rows PP-DKL has an NLL of 0.16 so, of -1.69 if it starts at 0.01, and of -2.57 at this rate.
        "noise": 1e-2,
        "noise_floor": 1e-6,
        "noise_learning_rate": 2e-2,
        "epochs": 100,
        "fewest_steps": FEWEST_STEPS,
    }
)
DEEP_ENSEMBLE: Mapping[str, Any] = MappingProxyType(
    {
        "members": 5,
        "width": WIDTH,
        "batch": BATCH,
        "learning_rate": LEARNING_RATE,
        "variance_floor": 1e-6,
        "epochs": 400,
        "epochs_cpu": 100,
        "fewest_steps": FEWEST_STEPS,
    }
)


def epochs_and_patience(rows: int, epochs: int, effort: Effort) -> tuple[int, int]:
    """At most so many epochs, more where they are short; and a fifth of them without progress ends a training."""
    steps = -(-rows // effort.batch)
    most = effort.at_most(max(epochs, -(-FEWEST_STEPS // steps)))
    return most, max(1, most // 5)


def fit_gpytorch(objective: str, fold: Fold, seeds: Sequence[int], effort: Effort) -> list[Trained]:
    """Deep kernel learning as `_peers` writes it; the parameters of the epoch with the best validation NLL."""
    import gpytorch
    from linear_operator.utils.errors import NanError, NotPSDError

    import _peers

    (seed,) = seeds
    device = effort.device
    x, y = (tensor.to(device) for tensor in fold.train)
    most, patience = epochs_and_patience(len(y), GPYTORCH["epochs"], effort)
    shuffle = torch.Generator().manual_seed(seed)

    def make() -> tuple[nn.Module, nn.Module]:
        model = _peers.DeepKernel(fold.columns, WIDTH, GPYTORCH["inducing"]).to(device)
        floor = gpytorch.constraints.GreaterThan(GPYTORCH["noise_floor"])
        likelihood = gpytorch.likelihoods.GaussianLikelihood(noise_constraint=floor).to(device)
        likelihood.noise = GPYTORCH["noise"]
        return model, likelihood

    def train() -> tuple[dict[str, Tensor], dict[str, Tensor], int]:
        model, likelihood = make()
        mll = _peers.OBJECTIVES[objective](likelihood, model.gp, num_data=len(y))
        noise = {"params": list(likelihood.parameters()), "lr": GPYTORCH["noise_learning_rate"]}
        optimiser = torch.optim.AdamW(
            [{"params": list(model.parameters())}, noise], lr=effort.learning_rate, fused=True
        )
        best, best_epoch, kept = math.inf, 0, (model.state_dict(), likelihood.state_dict())
        for epoch in range(1, most + 1):
            for rows in torch.randperm(len(y), generator=shuffle).to(device).split(effort.batch):
                optimiser.zero_grad()
                (-mll(model(x[rows]), y[rows])).backward()
                optimiser.step()
            predicted = _gpytorch_predict(model, likelihood, fold.validation.x)
            now = float(metrics.nll(predicted, fold.validation.y.to(device)))
            if now < best:
                best, best_epoch = now, epoch
                kept = copy.deepcopy((model.state_dict(), likelihood.state_dict()))
            elif epoch - best_epoch >= patience:
                break
        return *kept, best_epoch

    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), warnings.catch_warnings():
        _peers.quiet()
        torch.manual_seed(seed)
        try:
            *states, best_epoch = train()
        except (NanError, NotPSDError) as error:
            raise NumericalError(f"GPyTorch: {error}") from error
        model, likelihood = make()  # a new one: in eval mode the trained one would predict from what it has cached
    model.load_state_dict(states[0])
    likelihood.load_state_dict(states[1])
    return [Trained(lambda x: _gpytorch_predict(model, likelihood, x), best_epoch)]


@torch.no_grad()
def _gpytorch_predict(model: nn.Module, likelihood: nn.Module, x: Float[Tensor, "n d"]) -> Gaussian:
    device = next(model.parameters()).device
    model.eval()
    likelihood.eval()
    parts = [likelihood(model(rows.to(device))) for rows in x.split(2 * BATCH)]
    model.train()
    likelihood.train()
    return Gaussian(torch.cat([p.mean for p in parts]), torch.cat([p.variance for p in parts]))


class MeanVariance(nn.Module):
    """A network with two outputs, trained as N(mean, variance) (Lakshminarayanan et al., 2017)."""

    def __init__(self, d: int, h: int, inner: int | None, floor: float) -> None:
        super().__init__()
        self.backbone = ResNet(d, h, inner=inner)
        self.head = nn.Linear(h, 2)
        self.floor = floor

    def forward(self, x: Float[Tensor, "b d"]) -> tuple[Float[Tensor, " b"], Float[Tensor, " b"]]:
        mean, raw = self.head(self.backbone(x)).unbind(-1)
        return mean, nn.functional.softplus(raw) + self.floor


def fit_deep_ensemble(
    fold: Fold,
    seeds: Sequence[int],
    effort: Effort,
    inner: int | None = None,
    members: int = DEEP_ENSEMBLE["members"],
) -> list[Trained]:
    """All members of all seeds as one stack. Each has its own start, its own batches and its own best epoch."""
    device = effort.device
    own_seeds = [1_000 * seed + k for seed in seeds for k in range(members)]
    networks = []
    with torch.random.fork_rng(devices=[]):
        for seed in own_seeds:
            torch.manual_seed(seed)
            networks.append(MeanVariance(fold.columns, WIDTH, inner, DEEP_ENSEMBLE["variance_floor"]))
    epochs = DEEP_ENSEMBLE["epochs" if device.type == "cuda" else "epochs_cpu"]
    best, best_epoch = _train_stack(networks, own_seeds, fold, epochs, effort)
    if not all(epoch > 0 for epoch in best_epoch):
        raise NumericalError("a member of the deep ensemble has no finite validation NLL")
    network = networks[0].to(device)

    @torch.no_grad()
    def predict(first: int, x: Float[Tensor, "n d"]) -> GaussianMixture:
        own = {name: stack[first : first + members] for name, stack in best.items()}
        return GaussianMixture(*torch.vmap(partial(functional_call, network), (0, None))(own, x.to(device)))

    return [
        Trained(partial(predict, first), float(np.mean(best_epoch[first : first + members])))
        for first in range(0, len(networks), members)
    ]


def _train_stack(
    networks: Sequence[nn.Module], seeds: Sequence[int], fold: Fold, epochs: int, effort: Effort
) -> tuple[dict[str, Tensor], list[int]]:
    """Each network's parameters, stacked, of its epoch with the best validation NLL; and which epoch that was."""
    device = effort.device
    x, y, x_val, y_val = (tensor.to(device) for side in (fold.train, fold.validation) for tensor in side)
    most, patience = epochs_and_patience(len(y), epochs, effort)
    shuffles = [torch.Generator().manual_seed(seed) for seed in seeds]
    skeleton = copy.deepcopy(networks[0]).to("meta")
    stack = {k: v.detach().to(device).requires_grad_() for k, v in stack_module_state(list(networks))[0].items()}
    kept = {name: value.detach().clone() for name, value in stack.items()}

    def nll(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return gaussian_nll(y, *functional_call(skeleton, parameters, (x,))).mean()

    own_rows, same_rows = torch.vmap(nll), torch.vmap(nll, (0, None, None))
    optimiser = torch.optim.AdamW(stack.values(), lr=effort.learning_rate, fused=True)
    best = torch.full((len(networks),), torch.inf, device=device)
    best_epoch = torch.zeros(len(networks), dtype=torch.long, device=device)
    for epoch in range(1, most + 1):
        order = torch.stack([torch.randperm(len(y), generator=shuffle) for shuffle in shuffles]).to(device)
        for rows in order.split(effort.batch, dim=1):
            optimiser.zero_grad()
            own_rows(stack, x[rows], y[rows]).sum().backward()  # a sum: no member's gradient knows of the others
            optimiser.step()
        with torch.no_grad():
            now = same_rows(stack, x_val, y_val)
            waited = epoch - best_epoch
            better = (now < best) & (waited <= patience)  # a member that stopped alone would not see this epoch
            for name, value in stack.items():
                kept[name][better] = value[better]
            best, best_epoch = torch.where(better, now, best), torch.where(better, epoch, best_epoch)
            if bool((epoch - best_epoch >= patience).all()):
                break
    return kept, best_epoch.tolist()


@lru_cache(maxsize=1)
def _ensemble(fold: Fold, seeds: tuple[int, ...], effort: Effort) -> tuple[list[Trained], float]:
    """The last one is kept: with and without calibration it is the same training."""
    start = time.perf_counter()
    trained = fit_deep_ensemble(fold, seeds, effort)
    return trained, (time.perf_counter() - start) / len(seeds)


def fit_raw_ensemble(fold: Fold, seeds: Sequence[int], effort: Effort) -> list[Trained]:
    trained, seconds = _ensemble(fold, tuple(seeds), effort)
    return [one._replace(seconds=seconds) for one in trained]


def fit_calibrated_ensemble(fold: Fold, seeds: Sequence[int], effort: Effort) -> list[Trained]:
    """As ours are: a mixture of three scales, fitted to the validation rows."""

    def calibrated(one: Trained) -> Trained:
        found = calibrate(one.predict(fold.validation.x), fold.validation.y.to(effort.device))
        return one._replace(predict=lambda x: found.apply(one.predict(x)))

    return [calibrated(one) for one in fit_raw_ensemble(fold, seeds, effort)]


# ---- trees, and the exact GP ---------------------------------------------------------------------------------------

CATBOOST: Mapping[str, Any] = MappingProxyType(
    {"loss_function": "RMSEWithUncertainty", "depth": 8, "iterations": 2_000, "early_stopping_rounds": 100}
)
NGBOOST: Mapping[str, Any] = MappingProxyType(
    {"depth": 6, "stages": 500, "learning_rate": 0.04, "early_stopping_rounds": 50}
)
NGBOOST_HALF_ROWS = 10_000
"""Above so many training rows each stage of NGBoost sees a half of them, to be affordable."""
GP_RESTARTS = 1


def fit_catboost(fold: Fold, seeds: Sequence[int], effort: Effort) -> list[Trained]:
    from catboost import CatBoostRegressor

    (seed,) = seeds
    options = {**CATBOOST, "iterations": effort.at_most(CATBOOST["iterations"])}
    model = CatBoostRegressor(
        **options, random_seed=seed, thread_count=effort.threads, allow_writing_files=False, verbose=False
    )
    validation = (fold.validation.x.numpy(), fold.validation.y.numpy())
    model.fit(fold.train.x.numpy(), fold.train.y.numpy(), eval_set=validation, use_best_model=True)

    def predict(x: Float[Tensor, "n d"]) -> Gaussian:
        mean, variance = model.predict(x.numpy(), prediction_type="RMSEWithUncertainty").T
        return _gaussian(mean, variance)

    return [Trained(predict, model.tree_count_)]


def fit_ngboost(fold: Fold, seeds: Sequence[int], effort: Effort) -> list[Trained]:
    from ngboost import NGBRegressor
    from ngboost.distns import Normal
    from sklearn.tree import DecisionTreeRegressor

    (seed,) = seeds
    rows = len(fold.train.y)
    model = NGBRegressor(
        Dist=Normal,
        Base=DecisionTreeRegressor(max_depth=NGBOOST["depth"], random_state=seed),
        n_estimators=effort.at_most(NGBOOST["stages"]),
        learning_rate=NGBOOST["learning_rate"],
        minibatch_frac=0.5 if rows > NGBOOST_HALF_ROWS else 1.0,
        random_state=seed,
        verbose=False,
    )
    (X, y), (X_val, y_val) = ((side.x.numpy(), side.y.numpy()) for side in (fold.train, fold.validation))
    model.fit(X, y, X_val=X_val, Y_val=y_val, early_stopping_rounds=NGBOOST["early_stopping_rounds"])
    stages = int(model.best_val_loss_itr) + 1  # NGBoost would predict with all, those after the best too

    def predict(x: Float[Tensor, "n d"]) -> Gaussian:
        found = model.pred_dist(x.numpy(), max_iter=stages)
        return _gaussian(found.params["loc"], found.params["scale"] ** 2)

    return [Trained(predict, stages)]


def fit_exact_gp(fold: Fold, seeds: Sequence[int], effort: Effort) -> list[Trained]:
    """The marginal likelihood needs no validation rows: they train too."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

    (seed,) = seeds
    smooth = ConstantKernel(1.0, (1e-3, 1e3)) * RBF(np.ones(fold.columns), (1e-2, 1e3))
    how = {"n_restarts_optimizer": GP_RESTARTS} if effort.limit is None else {"optimizer": None}
    model = GaussianProcessRegressor(smooth + WhiteKernel(0.1, (1e-6, 1e1)), random_state=seed, **how)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # a lengthscale at its bound: the input does not count
        model.fit(
            torch.cat([fold.train.x, fold.validation.x]).double().numpy(),
            torch.cat([fold.train.y, fold.validation.y]).double().numpy(),
        )

    def predict(x: Float[Tensor, "n d"]) -> Gaussian:
        mean, std = model.predict(x.double().numpy(), return_std=True)  # WhiteKernel's noise is in it
        return _gaussian(mean, std**2)

    return [Trained(predict, None)]


def _gaussian(mean: Any, variance: Any) -> Gaussian:
    return Gaussian(torch.from_numpy(np.array(mean, np.float64)), torch.from_numpy(np.array(variance, np.float64)))


# ---- all of them ---------------------------------------------------------------------------------------------------

_DKL = (
    "deep kernel learning in GPyTorch with the paper's backbone (width 64, inside a block too) and 128 inducing "
    "points, {}; AdamW 1e-3, batch 1024, the noise from 1e-2 at a rate of 2e-2, at most 100 epochs or 4,000 steps, "
    "whichever is more, patience a fifth of them, best epoch by validation NLL"
)

_DEEP_ENSEMBLE = (
    "five mean-variance networks with the paper's backbone (width 64, {}), Gaussian NLL, AdamW 1e-3, batch 1024, at "
    "most 400 epochs on a GPU and 100 on a CPU, or 4,000 steps, whichever is more, patience a fifth of them, best "
    "epoch of each member by validation NLL"
)

MODELS: Mapping[str, Model] = MappingProxyType(
    {
        model.name: model
        for model in (
            _ours("deepbasis", "`DeepBasisRegressor()`, an ensemble by default"),
            _ours("deepbasis-1", "`DeepBasisRegressor(members=1)`", members=1),
            _ours(
                "paper-dbk-silu",
                'the paper\'s DBK-SiLU: `DeepBasisRegressor(recipe="paper", members=1, scaling="standard")`',
                recipe="paper",
                scaling="standard",
                members=1,
                method="dbk-silu",
            ),
            _ours(
                "paper-dbk-rbf",
                "the paper's DBK-RBF: "
                '`DeepBasisRegressor(recipe="paper", members=1, method="dbk-rbf", scaling="standard")`',
                recipe="paper",
                scaling="standard",
                members=1,
                method="dbk-rbf",
            ),
            Model(
                "gpytorch-pp-dkl",
                _DKL.format("PPGP objective"),
                partial(fit_gpytorch, "gpytorch-ppgp"),
                GPYTORCH,
                "gpytorch",
            ),
            Model(
                "gpytorch-sv-dkl",
                _DKL.format("SVGP's ELBO"),
                partial(fit_gpytorch, "gpytorch-svgp"),
                GPYTORCH,
                "gpytorch",
            ),
            Model(
                "deep-ensemble",
                _DEEP_ENSEMBLE.format("inside a block too"),
                fit_raw_ensemble,
                DEEP_ENSEMBLE,
                stacked=True,
            ),
            Model(
                "deep-ensemble-calibrated",
                "`deep-ensemble` with the calibration of ours: each Gaussian a mixture of three scales, fitted to the "
                "validation rows",
                fit_calibrated_ensemble,
                DEEP_ENSEMBLE,
                stacked=True,
                with_model="deep-ensemble",
            ),
            Model(
                "deep-ensemble-wide",
                _DEEP_ENSEMBLE.format("256 inside a block, as `deepbasis` has above 2,000 rows"),
                partial(fit_deep_ensemble, inner=256),
                {**DEEP_ENSEMBLE, "inner": 256},
                stacked=True,
            ),
            Model(
                "catboost",
                "CatBoost, RMSEWithUncertainty, depth 8, its default learning rate (0.03), up to 2,000 trees, stopped "
                "after 100 without progress on the validation rows and cut back to the best",
                fit_catboost,
                CATBOOST,
                "catboost",
                on_gpu=False,
            ),
            Model(
                "ngboost",
                "NGBoost, Normal, trees of depth 6, learning rate 0.04, up to 500 stages, stopped after 50 without "
                "progress on the validation rows and cut back to the best; half of the rows a stage above 10,000",
                fit_ngboost,
                {**NGBOOST, "half_rows": NGBOOST_HALF_ROWS},
                "ngboost",
                on_gpu=False,
            ),
            Model(
                "sklearn-gp",
                "scikit-learn's exact GP, constant * RBF (ARD) + white noise, fitted to training and validation rows, "
                "one restart; up to 2,000 rows",
                fit_exact_gp,
                {"restarts": GP_RESTARTS},
                "sklearn",
                on_gpu=False,
                most_rows=2_000,
            ),
            *QUANTILE_MODELS,
            *SIMPLE_MODELS,
        )
    }
)
OURS = ("deepbasis", "deepbasis-1")
"""The others are what they are compared with, the paper's own method among them."""
