"""Classifiers that a user would take instead, with their defaults; those that are not installed are left out.

A peer answers with probabilities [n, k] of the classes 0, 1, ..., k - 1 for each test row. Networks hold out a tenth of
the rows for themselves, as ours does, and stop and calibrate on it. None may look at a test row.
"""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Callable
from importlib.util import find_spec

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from torch import Tensor, nn

from _target_peers import numbers, texts, with_categories

Floats = NDArray[np.float64]
Codes = NDArray[np.int64]
Peer = Callable[[pd.DataFrame, Codes, pd.DataFrame, int], Floats]
"""Training rows, the numbers of their classes, test rows and a seed -> probabilities."""

HELD_OUT = 0.1
WIDTH, INDUCING, BATCH, RATE, EPOCHS, PATIENCE = 64, 128, 512, 3e-3, 100, 15  # of the deep kernel


def logistic(X: pd.DataFrame, y: Codes, test: pd.DataFrame, seed: int) -> Floats:
    return np.asarray(make_pipeline(numbers(), LogisticRegression(max_iter=2_000)).fit(X, y).predict_proba(test))


def boosting(X: pd.DataFrame, y: Codes, test: pd.DataFrame, seed: int) -> Floats:
    X, test = with_categories(X, test)
    model = HistGradientBoostingClassifier(categorical_features="from_dtype", random_state=seed)
    return np.asarray(model.fit(X, y).predict_proba(test))


def catboost(X: pd.DataFrame, y: Codes, test: pd.DataFrame, seed: int) -> Floats:
    from catboost import CatBoostClassifier

    words = texts(X)
    X, test = (one.astype(dict.fromkeys(words, str)) for one in (X, test))
    model = CatBoostClassifier(random_seed=seed, verbose=False, allow_writing_files=False)
    return np.asarray(model.fit(X, y, cat_features=words).predict_proba(test))


def realmlp(X: pd.DataFrame, y: Codes, test: pd.DataFrame, seed: int) -> Floats:
    """Its defaults for the log loss: no smoothed labels, the best epoch by it, and a temperature."""
    from pytabkit import RealMLP_TD_Classifier

    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    X, test = with_categories(X, test)
    model = RealMLP_TD_Classifier(
        device="cpu",
        random_state=seed,
        val_fraction=HELD_OUT,
        n_threads=torch.get_num_threads(),
        use_ls=False,
        val_metric_name="cross_entropy",
        calibration_method="ts-mix",
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return np.asarray(model.fit(X, y).predict_proba(test), np.float64)


def deep_kernel(X: pd.DataFrame, y: Codes, test: pd.DataFrame, seed: int) -> Floats:
    """GPyTorch's sparse variational GP behind our backbone, by the ELBO; K > 2 classes: K functions, a softmax."""
    import _peers

    encoder = numbers().fit(X)
    x, x_test = (torch.from_numpy(encoder.transform(table)).float() for table in (X, test))
    often = np.bincount(y)[y] > 1
    train, held = train_test_split(np.arange(len(y)), test_size=HELD_OUT, random_state=seed, stratify=y * often)
    labels, functions = torch.from_numpy(y), 1 if y.max() == 1 else int(y.max()) + 1
    with torch.random.fork_rng(), warnings.catch_warnings():
        _peers.quiet()
        torch.manual_seed(seed)
        model = _Classifier(x.shape[1], functions)
        optimiser = torch.optim.AdamW(model.parameters(), lr=RATE)
        best, best_epoch, kept = np.inf, 0, model.state_dict()
        for epoch in range(EPOCHS):
            for rows in torch.from_numpy(np.random.default_rng([seed, epoch]).permutation(train)).split(BATCH):
                optimiser.zero_grad()
                model.loss(x[rows], labels[rows], len(train)).backward()
                optimiser.step()
            p = model.probabilities(x[held])
            now = -np.log(p[np.arange(len(held)), y[held]]).mean()
            if now < best:
                best, best_epoch, kept = now, epoch, copy.deepcopy(model.state_dict())
            elif epoch - best_epoch >= PATIENCE:
                break
        found = _Classifier(x.shape[1], functions)  # a new one: the trained one would predict from what it has cached
        found.load_state_dict(kept)
        return found.probabilities(x_test)


class _Classifier(nn.Module):
    def __init__(self, columns: int, functions: int) -> None:
        import gpytorch

        import _peers
        from deepbasis.gp.backbone import ResNet

        super().__init__()
        self.several = functions > 1
        self.backbone = ResNet(columns, WIDTH)
        self.gp = _peers.SparseGP(torch.rand(functions, INDUCING, WIDTH) * 2.0 - 1.0)
        self.gp.covar_module.base_kernel.lengthscale = WIDTH**0.5
        self.likelihood = (
            gpytorch.likelihoods.SoftmaxLikelihood(num_classes=functions, mixing_weights=False)
            if self.several
            else gpytorch.likelihoods.BernoulliLikelihood()
        )

    def _functions(self, x: Tensor):  # type: ignore[no-untyped-def]
        from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal

        each = self.gp(self.backbone(x).expand(self.gp.mean_module.batch_shape[0], -1, -1))
        if self.several:
            return MultitaskMultivariateNormal.from_batch_mvn(each)
        return MultivariateNormal(each.mean[0], each.lazy_covariance_matrix[0])

    def loss(self, x: Tensor, y: Tensor, n: int) -> Tensor:
        """Minus the ELBO, a row."""
        fit = self.likelihood.expected_log_prob(y if self.several else y.float(), self._functions(x)).mean()
        return self.gp.variational_strategy.kl_divergence().sum() / n - fit

    @torch.no_grad()
    def probabilities(self, x: Tensor) -> Floats:
        import gpytorch

        self.eval()
        with gpytorch.settings.num_likelihood_samples(256):
            found = [self.likelihood(self._functions(rows)).probs for rows in x.split(1_024)]
        self.train()
        p = torch.cat([one.mean(0) for one in found] if self.several else found).double().numpy()
        p = p if self.several else np.stack([1.0 - p, p], 1)
        return np.clip(p, 1e-9, None) / np.clip(p, 1e-9, None).sum(1, keepdims=True)


_PEERS: dict[str, tuple[str, Peer]] = {
    "logistic": ("sklearn", logistic),
    "hist-gradient-boosting": ("sklearn", boosting),
    "catboost": ("catboost", catboost),
    "realmlp": ("pytabkit", realmlp),
    "gpytorch-sv-dkl": ("gpytorch", deep_kernel),
}


def installed() -> dict[str, Peer]:
    return {name: peer for name, (package, peer) in _PEERS.items() if find_spec(package) is not None}
