"""What a spec becomes for classes, several outputs and noise that is a function; what does not suit is refused."""

from __future__ import annotations

from dataclasses import replace

from deepbasis.errors import InputError
from deepbasis.fitting.kinds import CLASSES
from deepbasis.fitting.plan import Facts
from deepbasis.fitting.spec import EXACT, GAUSSIAN, INPUT, INPUT_NOISE, OUTPUTS, WIDEN, Spec
from deepbasis.registry import LIKELIHOODS


def suited(spec: Spec, facts: Facts, objective: str) -> Spec:
    """`objective` is what the spec, or its method, trains by."""
    if facts.classes:
        spec = _for_classes(spec, objective)
    if facts.outputs:
        spec = _for_outputs(spec, facts.outputs, objective)
    if spec.noise == INPUT or spec.likelihood == INPUT_NOISE:
        spec = _for_input_noise(spec, facts, objective)
    return spec


def check_widens(spec: Spec) -> None:
    """`spec` as it was made to suit the target."""
    if spec.distance == WIDEN and spec.likelihood != GAUSSIAN:
        raise InputError(
            "distance='widen' is for one target that is a number, known exactly, with constant Gaussian noise, and "
            f"here the likelihood is {spec.likelihood!r}: leave distance out"
        )
    if spec.distance == WIDEN and spec.recipe == "paper":
        raise InputError("distance='widen' is no part of recipe='paper': leave one of them out")


def _for_classes(spec: Spec, objective: str) -> Spec:
    """What is fitted to classes, where nothing else was asked for; the rest is refused."""
    if spec.likelihood == GAUSSIAN:
        spec = replace(spec, likelihood=CLASSES)
    if LIKELIHOODS[spec.likelihood].target != "class":
        raise InputError(f"likelihood {spec.likelihood!r} is for numbers, and the target is classes: leave it out")
    if objective in ("elbo", "mse", EXACT):
        what = f"method {spec.method!r}" if spec.objective is None else f"objective {spec.objective!r}"
        raise InputError(
            f"{what} is not for classes: they are trained by the probability of the class (dppgp, ppgp), as the "
            "methods dbk-silu, dbk-rbf and pp-dkl are"
        )
    if spec.trend == "linear":
        raise InputError("trend 'linear' is for numbers, and the target is classes: leave it out")
    return spec if spec.trend == "none" else replace(spec, trend="none")


def _for_input_noise(spec: Spec, facts: Facts, objective: str) -> Spec:
    """Noise that is a function of the inputs, where the noise is Gaussian; everything else is refused."""
    if (
        facts.classes
        or facts.outputs
        or facts.edges
        or facts.censored
        or spec.likelihood not in (GAUSSIAN, INPUT_NOISE)
    ):
        raise InputError("noise='input' is for one target that is a number, known exactly, with Gaussian noise")
    if objective in ("mse", EXACT):
        raise InputError(f"noise='input' cannot be trained by the objective {objective!r}: leave one of them out")
    if spec.trend == "linear":
        raise InputError("noise='input' and trend='linear' do not go together: leave one of them out")
    return replace(spec, likelihood=INPUT_NOISE, trend="none")


def _for_outputs(spec: Spec, outputs: int, objective: str) -> Spec:
    """What is fitted to several outputs; what is for one alone is refused."""
    if objective in ("mse", EXACT):
        what = f"method {spec.method!r}" if spec.objective is None else f"objective {spec.objective!r}"
        raise InputError(f"{what} is for one target, and y has {outputs} columns: use another, or fit one for each")
    if spec.trend == "linear":
        raise InputError(f"trend 'linear' is for one target, and y has {outputs} columns: leave it out")
    return replace(spec, likelihood=OUTPUTS, trend="none")
