"""Registries: what a user may choose by name. A value is imported, and torch with it, when it is first used."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar, cast

from deepbasis.errors import InputError, check_choice

if TYPE_CHECKING:
    from torch import Tensor, nn

T = TypeVar("T")


class Registry(Mapping[str, T]):
    """Names, in the order of registration, and their values; one given as "module:attribute" is imported when used."""

    def __init__(self, kind: str, entries: Mapping[str, T | str]) -> None:
        self.kind = kind
        self._entries: dict[str, T | str] = dict(entries)

    def __getitem__(self, name: str) -> T:
        value = self._entries[name]
        if isinstance(value, str):
            module, _, attribute = value.partition(":")
            value = self._entries[name] = cast(T, getattr(import_module(module), attribute))
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries  # without an import

    def register(self, name: str, value: T | str) -> None:
        if not isinstance(name, str) or not name:
            raise InputError(f"the name of a new {self.kind} must be a text, got {name!r}")
        if name in self._entries:
            raise InputError(f"there is a {self.kind} named {name!r} already; choose another name")
        self._entries[name] = value

    def check(self, argument: str, value: Any) -> str:
        """The name, if it is one of these."""
        return check_choice(argument, value, self._entries)


EXPANSIONS: Registry[Callable[..., nn.Module]] = Registry(
    "expansion",
    {
        "silu": "deepbasis.gp.expansion:SiLU",
        "rbf": "deepbasis.gp.expansion:RBF",
        "rbf-linear": "deepbasis.gp.expansion:rbf_linear",
        "columns": "deepbasis.gp.expansion:Columns",
        "matern": "deepbasis.gp.expansion:Matern",
        "fourier": "deepbasis.gp.expansion:FourierFeatures",
        "fourier-matern": "deepbasis.gp.expansion:matern_features",
        "bsplines": "deepbasis.gp.expansion:BSplines",
        "arccos": "deepbasis.gp.expansion:ArcCos",
        "none": "deepbasis.gp.expansion:PassThrough",
    },
)
"""(width of the backbone, rank, *, jitter) -> expansion."""

EMBEDDINGS: Registry[Callable[[int], nn.Module] | None] = Registry(
    "embedding",
    {
        "none": None,
        "periodic": "deepbasis.gp.embedding:Periodic",
        "periodic-linear": "deepbasis.gp.embedding:PeriodicLinear",
        "fourier": "deepbasis.gp.embedding:Fourier",
        "piecewise-linear": "deepbasis.gp.embedding:piecewise_linear",
    },
)
"""(number of columns) -> embedding."""

LIKELIHOODS: Registry[Any] = Registry(
    "likelihood",
    {
        "gaussian": "deepbasis.gp.likelihoods:GaussianLikelihood",
        "interval": "deepbasis.gp.intervals:IntervalLikelihood",
        "classes": "deepbasis.gp.classes:ClassLikelihood",
        "outputs": "deepbasis.gp.outputs:OutputsLikelihood",
        "censored": "deepbasis.gp.censored:CensoredLikelihood",
        "student": "deepbasis.gp.student:StudentLikelihood",
        "input-noise": "deepbasis.gp.input_noise:InputNoiseLikelihood",
        "poisson": "deepbasis.gp.counts:PoissonLikelihood",
        "negative-binomial": "deepbasis.gp.counts:NegativeBinomialLikelihood",
    },
)
"""Classes that satisfy the `Likelihood` protocol."""

OBJECTIVES: Registry[Callable[..., Tensor]] = Registry(
    "objective",
    {
        "dppgp": "deepbasis.gp.objectives:dppgp",
        "dppgp-detached": "deepbasis.gp.objectives:dppgp_detached",
        "ppgp": "deepbasis.gp.objectives:ppgp",
        "elbo": "deepbasis.gp.objectives:elbo",
        "mse": "deepbasis.gp.objectives:mse",
    },
)
"""(model, x, y, n, alpha, beta, weight, whole) -> loss: the same arguments for all, each takes what it needs."""

FORMATS: Registry[Any] = Registry(
    "format",
    {
        ".csv": "deepbasis.tables.formats.csv:CSV",
        ".csv.gz": "deepbasis.tables.formats.csv:CSV_GZ",
        ".tsv": "deepbasis.tables.formats.csv:TSV",
        ".tsv.gz": "deepbasis.tables.formats.csv:TSV_GZ",
        ".parquet": "deepbasis.tables.formats.parquet:PARQUET",
    },
)
"""Of files of tables, by the ending of their names: `tables.formats.base.Format`."""

REGISTRIES: Registry[Registry[Any]] = Registry(
    "kind",
    {
        "expansion": EXPANSIONS,
        "embedding": EMBEDDINGS,
        "likelihood": LIKELIHOODS,
        "objective": OBJECTIVES,
        "format": FORMATS,
        "method": "deepbasis.gp.methods:METHODS",
        "recipe": "deepbasis.fitting.recipe:RECIPES",
    },
)


def register(kind: str, name: str, value: Any) -> None:
    """Add an expansion, embedding, likelihood, objective, file format, method or recipe under a new name.

    `value` is what the registry of that kind holds, or "module:attribute", which is imported at first use.
    """
    REGISTRIES[REGISTRIES.check("kind", kind)].register(name, value)
