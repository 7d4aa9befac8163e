"""The parts of the 1-D example: what is computed, by which settings, and what is recorded of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from deepbasis.engine.batches import Rows
from deepbasis.engine.members import Ensemble, Member
from deepbasis.engine.memory import is_out_of_memory
from deepbasis.engine.settings import EXACT
from deepbasis.engine.wave import Wave
from deepbasis.gp import exact, metrics
from deepbasis.gp.model import DeepBasisGP
from deepbasis.paper import data_step1d as dataset
from deepbasis.paper import runs
from deepbasis.paper.parts import Content, Folder, Part
from deepbasis.paper.protocol import FAST_LOG as READING
from deepbasis.paper.records import to_draw
from deepbasis.paper.step1d_results import DPPGP, EXACT_DBK, EXACT_DKL, EXACT_RBF, GRID, SHOWN_RANKS, StudyResults
from deepbasis.paper.step1d_sizes import Step1dSize, Study
from deepbasis.paper.timing import Clock, step_milliseconds

# The paper's protocol (App. B, "1-D Synthetic Data").
METHOD = "dbk-silu"
WIDTH, RANK, BATCH = 64, 128, 200
ALPHA = BETA = 0.01
MOST_EPOCHS, PATIENCE = 2_000, 100
DATA_SEED = 0

DECAYING: Mapping[str, Any] = {"schedule": "cosine"}
"""NOTE[DIFF]: the rate of dPPGP falls from the paper's 1e-3 to 0 along a cosine; all epochs are done, and the best of
them on the validation rows is kept."""
CONSTANT: Mapping[str, Any] = {"patience": PATIENCE}
"""As the paper has it. Near the zeros of the noise a constant rate makes the mean tremble by more than the noise there:
the first three seeds of rank 8 ended 0.05 nats above the oracle, and 0.03 with the falling rate."""

FEWEST_COMPILED_STEPS = 20_000
"""On a GPU, below this many steps compiling takes longer than it saves."""
COLLAPSE_SEEDS, COLLAPSE_MOMENTS = 3, 40
GP_TIMED_STEPS, GP_TIMED_SECONDS = 10, 4.0


FitExact = Callable[..., Any]
"""`exact_gpytorch.fit`, which needs GPyTorch, or what stands in for it in a test."""


def fit_by_gpytorch(rows: Sequence[Rows], grid: Tensor, budget: tuple[float, int, int], width: int | None) -> Any:
    """Exact RBF on the rows to train, validate and test on, within (seconds, steps, seeds); with a width exact DKL."""
    from deepbasis.paper.exact_gpytorch import Rates, Task, TimeBudget, fit

    rates = Rates(noise_learning_rate=READING.noise_learning_rate)
    data, validation, test = rows
    return fit(Task(data, validation, test, grid), TimeBudget(*budget), rates, width=width)


def epochs_within(most_steps: int, n: int) -> int:
    """Of dPPGP on n rows: the paper's most, cut so that there are no more steps than these; at least one."""
    return max(1, min(MOST_EPOCHS, most_steps // _batches(n)))


def _batches(n: int) -> int:
    return -(-n // BATCH)


class Laboratory:
    """Makes the parts of one study."""

    def __init__(self, folder: Folder, size: Step1dSize, study: Study, fit_exact: FitExact = fit_by_gpytorch) -> None:
        self.folder, self.size, self.study, self.fit_exact = folder, size, study, fit_exact
        self.device = folder.device
        self.data = dataset.experiment_data(
            training=size.training_rows,
            validation=size.other_rows,
            test=size.other_rows,
            amplitude=study.amplitude,
            seed=DATA_SEED,
        )
        self.validation, self.test = Rows(*self.data.validation), Rows(*self.data.test)
        self.grid = GRID[:, None]

    def results(self) -> StudyResults:
        study, focus, end = self.study, self.size.focus, f"a{self.study.amplitude:g}"
        scores = dataset.oracle_scores(self.data.test, study.amplitude)
        results = StudyResults(study.amplitude, scores, self.data.training.first(focus))
        for n in study.sizes:
            results.add_size(
                DPPGP, n, self._dppgp(f"dppgp-{end}-n{n}", n, drawn=n == focus), self._dbk_times("dppgp", n)
            )
            results.add_size(EXACT_DBK, n, self._exact(f"exact-{end}-n{n}", n), self._dbk_times("exact", n))
        for n in study.gp_sizes:
            for method, name in ((EXACT_RBF, "rbf"), (EXACT_DKL, "dkl")):
                deep = method == EXACT_DKL
                results.add_size(
                    method, n, self._gpytorch(f"{name}-{end}-n{n}", n, deep), self._gp_times(name, n, deep)
                )
        for rank in study.ranks:
            results.add_rank(rank, self._dppgp(f"rank-{end}-r{rank}", focus, rank, drawn=rank in SHOWN_RANKS))
        for rank in study.constant_ranks:
            part = self._dppgp(f"constant-{end}-r{rank}", focus, rank, CONSTANT, drawn=False)
            results.add_constant_rank(rank, part)
        for method in study.expansions:
            results.add_expansion(
                method, self._expansion(f"expansion-{end}-n{self.size.expansion_rows}-{method}", method)
            )
        if study.collapse_steps:
            results.add_collapse(self._collapse(f"collapse-{end}"))
        return results

    # ---- DBK through our engine --------------------------------------------------------------------------------

    def _dppgp(
        self,
        name: str,
        n: int,
        rank: int = RANK,
        pace: Mapping[str, Any] = DECAYING,
        *,
        drawn: bool,
        most_steps: int | None = None,
        **other: Any,
    ) -> Part | None:
        epochs = epochs_within(most_steps or self.study.most_steps, n)
        chosen = {"epochs": epochs, "batch_size": BATCH, **pace}
        compile = self.device.type == "cuda" and epochs * _batches(n) >= FEWEST_COMPILED_STEPS
        return self._dbk(name, n, rank, chosen, compile, drawn=drawn, **other)

    def _expansion(self, name: str, method: str) -> Part | None:
        size = self.size
        given: dict[str, Any] = {"method": method, "seeds": size.expansion_seeds, "most_steps": size.expansion_steps}
        return self._dppgp(name, size.expansion_rows, drawn=False, **given)

    def _exact(self, name: str, n: int) -> Part | None:
        """No patience: an epoch is a step, and the paper does all of them."""
        chosen = {"objective": EXACT, "epochs": self.size.exact_steps}
        seeds, drawn = self.study.exact_seeds.get(n), n == self.size.focus
        return self._dbk(name, n, RANK, chosen, compile=False, seeds=seeds, drawn=drawn)

    def _dbk(
        self,
        name: str,
        n: int,
        rank: int,
        chosen: Mapping[str, Any],
        compile: bool,
        *,
        drawn: bool,
        seeds: int | None = None,
        method: str = METHOD,
    ) -> Part | None:
        """`chosen` are settings that a recorded part must agree with; compiling or not is none of them."""
        seeds = seeds or self.size.seeds
        build = READING.build(method, 1, rank=rank, width=WIDTH)
        settings = READING.settings(method, **chosen, compile=compile)
        members = [Member(seed=seed, alpha=ALPHA, beta=BETA) for seed in range(seeds)]
        rows = Rows(*self.data.training.first(n))

        def compute() -> Content:
            run = runs.fit(
                build,
                members,
                rows,
                self.validation,
                settings,
                device=self.device,
                progress=self.folder.progress,
                checkpoint=self.folder.checkpoint(name),
            )
            return self._described(run, drawn)

        settings_of_part = {**self._common(n), "seeds": seeds, "rank": rank, "width": WIDTH, **chosen}
        settings_of_part |= {} if method == METHOD else {"method": method}
        return self.folder.part(name, settings_of_part, compute)

    def _common(self, n: int) -> dict[str, Any]:
        return {
            "amplitude": self.study.amplitude,
            "n": n,
            "rows": [self.size.training_rows, self.size.other_rows, self.size.other_rows],
            "data_seed": DATA_SEED,
            "seeds": self.size.seeds,
            "weights": [ALPHA, BETA],
            "learning_rates": [READING.settings(METHOD).learning_rate, READING.noise_learning_rate],
        }

    @torch.no_grad()
    def _described(self, run: runs.Run, drawn: bool) -> Content:
        """Scores and effective rank of every seed; and, if it is drawn, prediction and basis of the best on the grid.

        NOTE[DIFF]: the best run is chosen by validation NLL; the paper's figure shows the best by test NLL.
        """
        records = run.records(self.test, self.device)
        usable = [k for k, record in enumerate(records) if record["nll"] is not None]
        bases = {k: run.model(k).basis(self.grid) for k in usable}
        for k, record in enumerate(records):
            spectrum = metrics.basis_spectrum(bases[k].double()) if k in bases else None
            record["effective_rank"] = None if spectrum is None else float(metrics.effective_rank(spectrum))
        best = min(usable, key=lambda k: records[k]["validation"], default=None)
        values = {"records": records, "best": best, "epochs": run.settings.epochs, "exact": run.settings.exact}
        if best is None or not drawn:
            return values, {}
        shown = run.predict(self.grid, self.device)[best]
        return values, {"mean": to_draw(shown.mean), "std": to_draw(shown.std), "phi": to_draw(bases[best])}

    def _collapse(self, name: str) -> Part | None:
        """How the kernel's spectrum changes while exact training goes on, longer than the paper's."""
        n, steps = self.size.focus, self.study.collapse_steps
        moments = sorted({round(k * steps / COLLAPSE_MOMENTS) for k in range(COLLAPSE_MOMENTS + 1)})
        seeds = min(COLLAPSE_SEEDS, self.size.seeds)

        def compute() -> Content:
            settings = READING.settings(METHOD, objective=EXACT, epochs=steps)
            members = [Member(seed=seed) for seed in range(seeds)]
            rows = Rows(*self.data.training.first(n))
            build = READING.build(METHOD, 1, rank=RANK, width=WIDTH)
            wave = Wave(build, list(range(seeds)), members, rows, self.validation, settings, self.device)
            wave.prepare()
            grid = self.grid.to(self.device)
            spectra = [self._spectra(wave, grid)]
            for k in range(1, steps + 1):
                wave.train_epoch(lambda: False)
                if k in moments:
                    spectra.append(self._spectra(wave, grid))
            every = torch.stack(spectra, 1)  # [seeds, moments, r]
            values = {
                "n": n,
                "seeds": seeds,
                "moments": moments,
                "effective_ranks": [[float(metrics.effective_rank(one)) for one in seed] for seed in every],
                "first_shares": (every[..., 0] / every.sum(-1)).tolist(),
            }
            return values, {}

        return self.folder.part(name, {**self._common(n), "seeds": seeds, "rank": RANK, "steps": steps}, compute)

    @staticmethod
    @torch.no_grad()
    def _spectra(wave: Wave, grid: Tensor) -> Tensor:
        """[E, r]: eigenvalues of every member's kernel on the grid, the largest first."""
        phi = wave.stack.map(lambda model, x: model.basis(x), (), (grid,))
        return torch.stack([metrics.basis_spectrum(one.double().cpu()) for one in phi])

    # ---- exact GPs through GPyTorch ----------------------------------------------------------------------------

    def _gpytorch(self, name: str, n: int, deep: bool) -> Part | None:
        size = self.size
        settings = {**self._common(n), "steps": size.gp_steps, "seconds": size.gp_seconds, "width": WIDTH}

        def compute() -> Content:
            result = self._fit_gp(n, size.gp_seconds, size.gp_steps, size.seeds, deep)
            values = {name: getattr(result, name) for name in ("records", "best", "unconverged")}
            if n != size.focus:
                return values, {}
            mean, std = result.drawn.mean, result.drawn.std
            return values, {"mean": to_draw(mean), "std": to_draw(std), "K": to_draw(result.K)}

        return self._gp_part(name, n, settings, compute)

    def _fit_gp(self, n: int, seconds: float, steps: int, seeds: int, deep: bool) -> Any:
        here = (Rows(*self.data.training.first(n)), self.validation, self.test)
        rows = [side.to(self.device, torch.float32) for side in here]
        return self.fit_exact(rows, self.grid.to(self.device), (seconds, steps, seeds), WIDTH if deep else None)

    def _gp_part(self, name: str, n: int, settings: Mapping[str, Any], compute: Callable[[], Content]) -> Part | None:
        try:
            return self.folder.part(name, settings, compute)
        except ModuleNotFoundError as error:
            if error.name not in ("gpytorch", "linear_operator"):
                raise
            self.folder.tell(f"{name}: left out, it needs GPyTorch: pip install 'deepbasis[gpytorch]'")
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            self.folder.tell(f"{name}: left out, {n} x {n} kernel matrices do not fit into the memory here")
        return None

    # ---- times: parts of their own, the same for every amplitude, to be measured with nothing else on the device -----

    def _dbk_times(self, name: str, n: int) -> Part | None:
        """A step and an evaluation of one model at its start: not compiled, on a GPU as one CUDA graph.

        NOTE[GAP]: the paper does not say whether evaluating an exact model includes its solve. Here it does, from the
        parameters alone (Algorithm 2); "again" is without.
        """
        objective = {"objective": EXACT} if name == "exact" else {}

        def compute() -> Content:
            rows, build = Rows(*self.data.training.first(n)), READING.build(METHOD, 1, rank=RANK, width=WIDTH)
            settings = READING.settings(METHOD, batch_size=BATCH, **objective)
            wave = Wave(build, [0], [Member(seed=0)], rows, self.validation, settings, self.device)
            wave.prepare()
            model, clock, x = wave.stack.member(0), Clock(self.device), self.test.x.to(self.device)
            again = _evaluation(model, x)
            chunks = rows.to(self.device, settings.dtype)

            def with_posterior() -> None:
                """Algorithm 2: features of all rows, the closed-form posterior, then the prediction."""
                exact.fit_posterior(model, lambda: zip(chunks.x.split(8192), chunks.y.split(8192), strict=True))
                again()

            values = {
                "step_ms": step_milliseconds(wave),
                "eval_ms": clock.milliseconds(with_posterior if settings.exact else again, repetitions=9),
                "eval_again_ms": clock.milliseconds(again, repetitions=9),
            }
            return values, {}

        return self.folder.part(f"time-{name}-n{n}", self._timed(n), compute)

    def _gp_times(self, name: str, n: int, deep: bool) -> Part | None:
        """The same of an exact GP, over its first steps: later ones take longer, as the noise falls."""

        def compute() -> Content:
            result = self._fit_gp(n, GP_TIMED_SECONDS, GP_TIMED_STEPS, 1, deep)
            return {name: getattr(result, name) for name in ("step_ms", "eval_ms", "eval_again_ms")}, {}

        return self._gp_part(f"time-{name}-n{n}", n, self._timed(n), compute)

    def _timed(self, n: int) -> dict[str, Any]:
        return {"n": n, "test_rows": self.size.other_rows, "rank": RANK, "width": WIDTH, "batch_size": BATCH}


def _evaluation(model: DeepBasisGP, x: Tensor) -> Callable[[], None]:
    ensemble = Ensemble([model], device=x.device)

    def evaluate() -> None:
        ensemble.predict(x)

    return evaluate
