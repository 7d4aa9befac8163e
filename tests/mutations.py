"""What `make test` is worth: mistakes in formulas, made on purpose, each of which it must notice.

    python tests/mutations.py             # all of them: a table, and status 1 if one is not noticed
    python tests/mutations.py kl trace    # those whose names hold one of these words
    python tests/mutations.py --list

Each is made in a copy of the package. The tests named beside it are run first; where they all pass, the whole of
`make test`. A text that is no longer there, or stands there twice, is an error: the list must follow the code.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "deepbasis"


@dataclass(frozen=True)
class Mutation:
    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


def gp(name: str, file: str, old: str, new: str, *tests: str) -> Mutation:
    return Mutation(name, f"gp/{file}.py", old, new, tuple(f"gp/test_{one}.py" for one in tests))


def fitting(name: str, file: str, old: str, new: str, *tests: str) -> Mutation:
    return Mutation(name, f"fitting/{file}.py", old, new, tuple(f"fitting/test_{one}.py" for one in tests))


def formulas(name: str, file: str, old: str, new: str) -> Mutation:
    return Mutation(name, f"engine/formulas/{file}.py", old, new, ("engine/test_formulas.py",))


MUTATIONS = [
    fitting("kernels that found a third start again", "criteria", "_LITTLE = 0.9", "_LITTLE = 0.6", "longer_kernels"),
    fitting(
        "kernels learn from the rows that judge them",
        "run",
        "drawn(folds[0].data, ",
        "drawn(everything, ",
        "longer_kernels",
    ),
    gp("lengthscales as long as slopes", "expansion", "copy_(-share.log())", "copy_(share.log())", "expansion"),
    formulas("phases that go the other way", "inputs", 'b": -TURN * dangles', 'b": TURN * dangles'),
    formulas("half of what a norm takes off", "network", "at.along, value=-1.0)", "at.along, value=-0.5)"),
    formulas("no pull on the diagonal of q(w)", "network", "* self.diagonal - dkl[:, None],", "* self.diagonal,"),
    formulas("gradients as they lie", "gradients", "gradient[0]).contiguous()", "gradient[0])"),
    Mutation(
        "drawn classes with too little noise",
        "class_effects.py",
        "f.new_full((1, len(f)), scale)",
        "f.new_full((1, len(f)), 0.3 * scale)",
        ("test_class_effects.py",),
    ),
    Mutation(
        "a shallow kernel predicts in float32",
        "fitting/fitted.py",
        "dtype = torch.float64 if self.architecture.is_shallow else self.dtype",
        "dtype = self.dtype",
        ("fitting/test_predict.py",),
    ),
    gp("moments of a warp from half of the nodes", "warps", "_DENSITY = 4.0", "_DENSITY = 2.0", "warped"),
    Mutation(
        "a stream without its exposures",
        "tables/encoded.py",
        "counts, exposure = (y, None) if y.ndim == 1 else y.T",
        "counts, exposure = (y if y.ndim == 1 else y[:, 0]), None",
        ("fitting/test_streamed_targets.py",),
    ),
    Mutation(
        "spikes of small tables",
        "tables/encoders.py",
        "if total <= above or mass.max()",
        "if mass.max()",
        ("tables/test_encoders.py",),
    ),
    Mutation(
        "the disagreement is added to no variance",
        "fitting/distance.py",
        "found.variances + added",
        "found.variances + 0.0 * added",
        ("fitting/test_distance.py",),
    ),
    Mutation(
        "rows know the effects of their own part",
        "tables/effects.py",
        "effects(all_n - n, all_s - s)",
        "effects(all_n + 0 * n, all_s + 0 * s)",
        ("tables/test_effects.py",),
    ),
    Mutation(
        "no category is hidden",
        "tables/effects.py",
        "_chosen(hashes) < len(self.columns)",
        "_chosen(hashes) < 0",
        ("tables/test_effects.py", "fitting/test_many_categories.py"),
    ),
    # ---- few rows
    fitting("alternatives: the worse is taken", "run", "(theirs < ours)", "(theirs > ours)", "censored"),
    gp("waves of flags: 0 and 1 are exchanged", "embedding", "(at_1 - at_0)", "(at_0 - at_1)", "embedding"),
    Mutation(
        "gaps are no flags",
        "tables/encoders.py",
        "[True] * (self.width - others)",
        "[True] * (self.width - others - self.missing) + [False] * self.missing",
        ("tables/test_preprocessing.py",),
    ),
    gp(
        "the prior is of the lengthscales",
        "expansion",
        "apart = (self.log_lengthscale - self.log_lengthscale.mean())",
        "apart = self.log_lengthscale",
        "expansion",
    ),
    gp(
        "leaving one out: the noise is that of one row",
        "exact",
        "1.0 / precision - s / k + s",
        "1.0 / precision",
        "expansion",
    ),
    Mutation(
        "the prior has no gradient",
        "engine/steps.py",
        "((losses - prior) / n)",
        "((losses - prior.detach()) / n)",
        ("engine/test_lbfgs.py",),
    ),
    # ---- learning on
    gp(
        "learning on: weights by the noise alone",
        "likelihoods",
        "return 1.0 / (var + self.noise())",
        "return 1.0 / (0.0 * var + self.noise())",
        "learning",
    ),
    gp(
        "learning on: outputs weighted by their noise alone",
        "outputs",
        "return 1.0 / (var + self.noises())",
        "return 1.0 / (0.0 * var + self.noises())",
        "learning",
    ),
    gp(
        "learning on: no prior",
        "learning",
        "found.projection + ridge[..., None] *",
        "found.projection + 0.0 *",
        "learning",
    ),
    fitting(
        "learning on: new rows are forgotten too",
        "update",
        "was.times(forget).plus(more)",
        "was.plus(more).times(forget)",
        "update",
    ),
    fitting("learning on: rows set apart are learned", "update", "x, rows = x[~far], rows[~far]", "pass", "update"),
    fitting(
        "marginal likelihood: in the units of training",
        "update",
        "+ float(gained)",
        "+ 0.0 * float(gained)",
        "marginal_likelihood",
    ),
    # ---- gp: signs
    gp(
        "KL: sign of the log-determinant",
        "posterior",
        "0.5 * L2 - self.log_diagonal.sum()",
        "0.5 * L2 + self.log_diagonal.sum()",
        "model",
    ),
    gp(
        "KL of several functions: the covariance once",
        "posterior",
        "return of_each_L * of_L +",
        "return of_L +",
        "classes",
    ),
    gp(
        "classes: the variance that is not averaged over",
        "classes",
        "mean / (var + self.noise())",
        "mean / (self.noise() + 0 * var)",
        "classes",
    ),
    gp(
        "classes: the probit of the other class",
        "classes",
        "a[:, 0] * (2.0 * y - 1.0)",
        "a[:, 0] * (1.0 - 2.0 * y)",
        "classes",
    ),
    gp("classes: equal steps for those of the sinh", "classes", "+ torch.cosh(_STRETCH * s).log()", "", "classes"),
    gp("quantiles: a last step that is not small", "quantiles", "_CLOSE = 1e-5", "_CLOSE = 1e-1", "predictive"),
    gp(
        "cross-conformal: the promise counts no parts",
        "cross",
        "(k - 1 + len(sizes)) /",
        "(k - 1) /",
        "cross",
    ),
    gp(
        "cross-conformal: one row too few to be outside",
        "cross",
        "rows + 1 - outside(",
        "rows - outside(",
        "cross",
    ),
    gp(
        "conformal: one rank too deep",
        "conformal",
        "(rows + 1) * (1.0 - asked)",
        "(rows + 1) * (1.0 - asked) + 1",
        "conformal",
    ),
    gp(
        "adaptive intervals: narrower after a row outside",
        "conformal",
        "math.log(score) > self.followed",
        "math.log(score) < self.followed",
        "conformal",
    ),
    fitting(
        "novelty: a gap where there was none is nothing",
        "novelty",
        "_MISSED * (x == GAP)",
        "0.0 * (x == GAP)",
        "novelty",
    ),
    fitting(
        "a glance: squares of the wrong sign",
        "glance",
        "-2.0 * near.T",
        "2.0 * near.T",
        "novelty",
    ),
    fitting(
        "novelty: p-values from the wrong side",
        "novelty",
        "p = (1 + n - last).double()",
        "p = (1 + last).double()",
        "novelty",
    ),
    gp(
        "trace regulariser: its sign",
        "objectives",
        "weighted_mean(largest - prior_var, weight, whole)",
        "weighted_mean(prior_var - largest, weight, whole)",
        "objectives",
    ),
    gp(
        "bound of Eq. 3: sign of the correction",
        "exact",
        "squared = squared + correction.double()",
        "squared = squared - correction.double()",
        "exact",
    ),
    gp(
        "prediction: the prior mean subtracted",
        "model",
        "Terms(self.prior_mean(x) + mean,",
        "Terms(self.prior_mean(x) - mean,",
        "model",
        "exact",
    ),
    # ---- gp: factors
    gp("ELBO: KL not divided by n", "objectives", "return t.kl / n - ", "return t.kl - ", "objectives"),
    gp(
        "dPPGP: trace over s, not 2 s",
        "objectives",
        "/ (2.0 * model.noise())",
        "/ model.noise()",
        "objectives",
    ),
    gp(
        "weighted mean: divided by the rows",
        "objectives",
        "(weight * values).sum() / weight.sum()",
        "(weight * values).sum() / len(weight)",
        "objectives",
    ),
    gp(
        "expected log density: var / s, not var / 2 s",
        "likelihoods",
        "- var / (2.0 * s)",
        "- var / s",
        "objectives",
    ),
    gp("prediction without its noise", "likelihoods", "return mean, var + self.noise()", "return mean, var", "model"),
    gp(
        "Eq. 11: n for n - r",
        "exact",
        "(n - r) * s.log() + solution.logdet_Lambda",
        "n * s.log() + solution.logdet_Lambda",
        "exact",
    ),
    gp(
        "log |Lambda| without its factor 2",
        "exact",
        "2.0 * chol.diagonal().log().sum()",
        "chol.diagonal().log().sum()",
        "exact",
    ),
    gp(
        "gradient of Eq. 11: tr Lambda^-1 twice",
        "exact",
        "+ 0.5 * noise.double() * solution.Lambda_inv",
        "+ noise.double() * solution.Lambda_inv",
        "exact",
    ),
    gp(
        "closed-form posterior: Lambda^-1 without s",
        "exact",
        "model.posterior.set_(solution.w, model.noise().double() * solution.Lambda_inv)",
        "model.posterior.set_(solution.w, solution.Lambda_inv)",
        "exact",
    ),
    gp(
        "correction of Eq. 4: 1 for sigma_k^2",
        "expansion",
        "correction = (self.log_variance.exp() - prior_var)",
        "correction = (1.0 - prior_var)",
        "model",
        "theory",
    ),
    gp(
        "derivative of the inverse factor: whole diagonal",
        "expansion",
        "half = S.tril() - 0.5 * torch.diag_embed(S.diagonal())",
        "half = S.tril()",
        "objectives",
    ),
    gp(
        "calibration: responsibilities with twice the squares",
        "calibration",
        "(0.5 / scales)",
        "(1.0 / scales)",
        "calibration",
    ),
    gp(
        "mixture: variance without that of the means",
        "predictive",
        "return self.variances.mean(0) + self.means.var(0, unbiased=False)",
        "return self.variances.mean(0)",
        "predictive",
    ),
    gp("CRPS: the spread not halved", "predictive", "error - 0.5 * spread", "error - spread", "predictive"),
    gp(
        "warped density: the slope's sign",
        "warped",
        "self.base.log_prob(u) - self.warp.log_slope(u)",
        "self.base.log_prob(u) + self.warp.log_slope(u)",
        "warped",
    ),
    gp("Matern: the last term", "expansion", "a + a * a / 3.0", "a + a * a / 2.0", "expansions_of_the_outlook"),
    gp(
        "B-splines: height in the middle",
        "expansion",
        "4.0 * (1.0 - t)",
        "3.0 * (1.0 - t)",
        "expansions_of_the_outlook",
    ),
    gp(
        "arc-cosine: half of the scale",
        "expansion",
        "math.sqrt(2.0 / self.rank)",
        "math.sqrt(1.0 / self.rank)",
        "expansions_of_the_outlook",
    ),
    gp("censored: the density of every row", "censored", "exact = low == high", "exact = low <= high", "censored"),
    gp("Brier score: censored rows count", "censored", "exact & (y <= t)", "(y <= t)", "censored"),
    gp("PIT: no step", "metrics", "return predictive.below(y).minimum(high), high", "return high, high", "metrics"),
    gp("censored PIT: exact rows alone", "censored", "torch.where(upper.isfinite(), above, 1.0)", "above", "censored"),
    gp("counts: the mean up to y of another k", "count_sums", "rate, a, 1.0)", "rate, a, 0.0)", "counts"),
    gp("counts: twice the rate", "counts", "count * f - f.clamp_max", "count * f - 2.0 * f.clamp_max", "counts"),
    gp(
        "Student: shares of the precisions",
        "student",
        "shares = np.exp(-0.5 * z**2)",
        "shares = np.exp(-0.4 * z**2)",
        "student",
    ),
    gp(
        "an interval's far end",
        "intervals",
        "0.5 * (low - high) * (low + high)",
        "(low - high) * (low + high)",
        "intervals",
    ),
    gp("a spline's curvature", "warps", "((a - b) + (c - b)) / 2, ", "((a - b) + (c - b)) / 3, ", "warped"),
    # ---- gp: axes
    gp("variance: L for L^T", "posterior", "phi @ (L if L.dim() == 2", "phi @ (L.mT if L.dim() == 2", "model"),
    gp(
        "draws of q(w): L^T for L",
        "posterior",
        "L if L.dim() == 2 else L[0]).mT",
        "L if L.dim() == 2 else L[0])",
        "model",
    ),
    gp(
        "outputs: the copula with R for its inverse",
        "outputs",
        "0.5 * (e.square().sum(0)",
        "0.5 * (-e.square().sum(0)",
        "outputs",
    ),
    gp("outputs: the copula without its determinant", "outputs", " - L.diagonal().log().sum() -", " -", "outputs"),
    gp("outputs: the trace in units of one noise", "outputs", ".reciprocal().sum().reciprocal()", ".mean()", "outputs"),
    gp(
        "outputs: draws that do not correlate",
        "outputs",
        "z = z @ torch.linalg.cholesky(self.correlation.to(z)).mT",
        "pass",
        "outputs",
    ),
    gp(
        "noise of the inputs: the noise for its log",
        "input_noise",
        ".clamp(_LEAST, _MOST).exp()",
        ".clamp(_LEAST, _MOST)",
        "input_noise",
    ),
    gp("noise of the inputs: without what is not known", "input_noise", "var[:, 1:].sqrt() *", "0.0 *", "input_noise"),
    # ---- fitting
    fitting(
        "noise in units of the target, not squared",
        "fitted",
        "for model in self.models]) * self.target.scale**2",
        "for model in self.models]) * self.target.scale",
        "after_a_fit",
    ),
    fitting(
        "draws of functions: variance for standard deviation",
        "fitted",
        "math.sqrt(self.calibration.mean_scale)",
        "self.calibration.mean_scale",
        "predict",
    ),
    fitting(
        "score of a constant: in the units of training",
        "held_out",
        "simple.log_prob(own_y), ours",
        "simple.log_prob(y), ours",
        "after_a_fit",
    ),
    fitting(
        "copies: the bound with a wrong sign",
        "held_out",
        "(len(largest) - limit * k)",
        "(len(largest) + limit * k)",
        "held_out",
    ),
    gp(
        "rows of mixtures: not in their order",
        "predictive",
        "torch.cat(variances, 1), self.weights)",
        "torch.cat(variances[::-1], 1), self.weights)",
        "predictive",
    ),
    fitting(
        "line: share left without the rows that it costs",
        "start",
        "self.variance_left / self.variance * self.rows / freedom",
        "self.variance_left / self.variance",
        "trend",
    ),
    fitting(
        "Schwarz' criterion: twice its penalty",
        "criteria",
        "+ 0.5 * math.log(max(n, 1.0)) * numbers",
        "+ math.log(max(n, 1.0)) * numbers",
        "auto_choice",
    ),
    fitting(
        "choice: the worse is taken",
        "criteria",
        "not ours > theirs",
        "not ours < theirs",
        "auto_choice",
    ),
    fitting(
        "a fold's data are the rows that it holds out",
        "data",
        "return self._where(~self.held_out[fold]) if",
        "return self._where(self.held_out[fold]) if",
        "folds",
    ),
    fitting(
        "pairs: most failures first",
        "train",
        "key=lambda some: (-len(some),",
        "key=lambda some: (len(some),",
        "after_a_fit",
    ),
]


def mutate(mutation: Mutation, folder: Path) -> str:
    """Make a copy of the package with the mistake in it; what is wrong with the list, if something is."""
    copy = folder / "deepbasis"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    path = copy / mutation.file
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    if text.count(mutation.old) != 1:
        return f"{mutation.file} holds the text {text.count(mutation.old)} times"
    path.write_text(text.replace(mutation.old, mutation.new), encoding="utf-8")
    return ""


def fails(folder: Path, *arguments: str) -> bool:
    """Whether a test fails with the package that lies in this folder; a run that does not come so far is an error."""
    environment = {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-m", "not slow", "-p", "no:cacheprovider", *arguments]
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    failed = re.search(r"^\d+ failed", run.stdout, re.MULTILINE) is not None  # with several processes the status is 2
    if run.returncode != 0 and not failed:
        raise RuntimeError(run.stdout[-3000:] + run.stderr[-3000:])
    return failed


def verdict(mutation: Mutation) -> str:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        problem = mutate(mutation, folder)
        if problem:
            return f"NOT FOUND: {problem}"
        if fails(folder, *(f"tests/{test}" for test in mutation.tests)):
            return f"noticed by {', '.join(mutation.tests)}"
        if fails(folder, "--numprocesses", "2", "--dist", "worksteal"):
            return "noticed by make test"
    return "SURVIVES"


def main() -> int:
    words = [word for word in sys.argv[1:] if not word.startswith("-")]
    chosen = [one for one in MUTATIONS if not words or any(word in one.name for word in words)]
    if "--list" in sys.argv:
        for one in chosen:
            print(f"{one.file}: {one.name}\n    {one.old}\n    {one.new}")
        return 0
    with tempfile.TemporaryDirectory() as name:
        shutil.copytree(PACKAGE, Path(name) / "deepbasis")
        if fails(Path(name), *sorted({f"tests/{test}" for one in chosen for test in one.tests})):
            print("a test fails without any of them: mend that first")
            return 1
    bad = 0
    for number, one in enumerate(chosen, 1):
        start = time.monotonic()
        found = verdict(one)
        bad += not found.startswith("noticed")
        print(f"{number:2} | {one.file:22} | {one.name:52} | {found} ({time.monotonic() - start:.0f} s)", flush=True)
    print(f"{len(chosen) - bad} of {len(chosen)} mutations are noticed")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
