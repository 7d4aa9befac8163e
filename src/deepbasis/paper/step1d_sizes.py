"""How much of the 1-D example is computed: the full size, and a quick one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from deepbasis.paper import data_step1d as dataset

EXACT_STEPS = 2_000
"""The paper's."""
EXPANSIONS = ("dbk-silu", "dbk-rbf", "dbk-matern", "dbk-fourier", "dbk-fourier-matern", "dbk-bsplines", "dbk-arccos")


@dataclass(frozen=True)
class Study:
    """What is done at one amplitude of the noise."""

    amplitude: float
    sizes: tuple[int, ...]
    """n of the scaling, for DBK."""
    gp_sizes: tuple[int, ...]
    """n of the exact GPs; 20,000 is the most that the paper could."""
    ranks: tuple[int, ...]
    most_steps: int
    """Epochs of dPPGP are cut so that a training has no more steps than this."""
    exact_seeds: Mapping[int, int] = field(default_factory=dict)
    """By n: seeds of exact training, where not all are affordable."""
    constant_ranks: tuple[int, ...] = ()
    """Trained at a constant rate too, for comparison."""
    collapse_steps: int = 0
    """Steps of exact training through which the kernel's spectrum is followed."""
    expansions: tuple[str, ...] = ()
    """Methods of other expansions, and SiLU's, for as many steps."""


@dataclass(frozen=True)
class Step1dSize:
    studies: tuple[Study, ...]
    seeds: int
    focus: int
    """n of Fig. 1. NOTE[GAP]: and of the rank study, whose n the paper does not say."""
    training_rows: int = 100_000
    other_rows: int = 1_000
    """To validate, and as many to test."""
    exact_steps: int = EXACT_STEPS
    gp_seconds: float = 20.0
    """For all seeds of an exact GP at one n."""
    gp_steps: int = EXACT_STEPS
    expansion_rows: int = 1_000
    """n of the other expansions. NOTE[GAP]: the paper leaves them to future work."""
    expansion_seeds: int = 3
    expansion_steps: int = 3_000
    quick: bool = False
    """Whether its numbers mean nothing."""


FULL = Step1dSize(
    studies=(
        Study(
            amplitude=dataset.AMPLITUDE,
            sizes=(500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000),
            gp_sizes=(500, 1_000, 2_000, 5_000, 10_000, 20_000),
            ranks=(1, 2, 4, 8, 16, 32, 64),
            exact_seeds={50_000: 3},  # all ten take minutes there: they are spent on 100,000, the largest, alone
            constant_ranks=(8, 64),
            most_steps=40_000,
            collapse_steps=4_000,
            expansions=EXPANSIONS,
        ),
        Study(
            amplitude=dataset.PRINTED_AMPLITUDE,
            sizes=(500, 5_000, 20_000, 100_000),
            gp_sizes=(500, 5_000, 20_000),
            ranks=(1, 2, 8, 64),
            exact_seeds={100_000: 2},
            most_steps=15_000,
        ),
    ),
    seeds=10,
    focus=20_000,
)
QUICK = Step1dSize(
    studies=(
        Study(
            amplitude=dataset.AMPLITUDE,
            sizes=(500, 1_000),
            gp_sizes=(500, 1_000),
            ranks=(1, 8),
            constant_ranks=(8,),
            most_steps=60,
            collapse_steps=20,
            expansions=EXPANSIONS,
        ),
        Study(amplitude=dataset.PRINTED_AMPLITUDE, sizes=(1_000,), gp_sizes=(1_000,), ranks=(1, 8), most_steps=60),
    ),
    seeds=2,
    focus=1_000,
    training_rows=1_000,
    exact_steps=10,
    gp_seconds=5.0,
    gp_steps=5,
    quick=True,
)
