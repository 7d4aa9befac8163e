"""Files made on purpose, with the right checksum and contents that make no sense, or that claim to be huge."""

import copy
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from deepbasis import DeepBasisClassifier, DeepBasisRegressor, storage
from deepbasis.errors import FileFormatError, NumericalError
from deepbasis.fitting.fitted import KIND
from support.classifiers import small_classifier, three
from support.model_files import Metadata, forged, numbers, small

pytestmark = pytest.mark.usefixtures("one_thread")


def put(*keys: Any, value: Any) -> Callable[[Metadata], None]:
    """Set metadata[k1][k2]… = value."""

    def change(metadata: Metadata) -> None:
        place: Any = metadata
        for key in keys[:-1]:
            place = place[key]
        place[keys[-1]] = value

    return change


def drop(*keys: Any) -> Callable[[Metadata], None]:
    def change(metadata: Metadata) -> None:
        place: Any = metadata
        for key in keys[:-1]:
            place = place[key]
        del place[keys[-1]]

    return change


def forge(**changes: Any) -> Callable[[Metadata], None]:
    """In what was planned and in what was chosen alike."""

    def change(metadata: Metadata) -> None:
        metadata.update(forged(metadata, **changes))

    return change


WRONG: dict[str, Callable[[Metadata], None]] = {
    **{
        f"no {key}": drop(key)
        for key in (
            *("spec", "plan", "chosen", "architecture", "members", "preprocessing", "target", "calibration"),
            *("validation", "alpha", "beta", "rows", "target_name", "versions"),
        )
    },
    **{f"members={value!r}": put("members", value=value) for value in (-1, 0, 1, 3, 10**9, 1.5, "2", None, [], True)},
    **{
        f"{key}={value!r}": put(key, value=value)
        for key in ("spec", "architecture", "plan")
        for value in (None, [], "x", {"speed": 3}, {1: 2})
    },
    **{
        f"{name}={value!r}": put("spec", name, value=value)
        for name, value in [
            ("method", "magic"),
            ("method", None),
            ("method", ["dbk-silu"]),
            ("recipe", "cake"),
            ("objective", 3),
            ("rank", -1),
            ("rank", "4"),
            ("rank", 4.5),
            ("rank", None),
            ("width", 0),
            ("width", True),
            ("blocks", "1"),
            ("members", -1),
            ("alpha", "much"),
            ("epochs", -5),
            ("dtype", "int8"),
            ("device", "abacus"),
            ("validation_fraction", 7),
            ("calibrate", "perhaps"),
            ("speed", 1),
            ("__class__", "x"),
        ]
    },
    **{
        f"architecture {name}={value!r}": forge(**{name: value})
        for name, value in [
            *(("method", given) for given in (None, "auto", "sv-rbf", "dbk-rbf", "dnn", "x", 3, [], {})),
            *(("rank", given) for given in (-1, 0, 5, "4", 4.5, None)),
            *(("width", given) for given in (0, 8, "4", None)),
            *(("blocks", given) for given in (0, 2, "1", None)),
            *(("inner", given) for given in (0, 5, "4")),
            ("embedding", "fourier"),
            ("embedding", 3),
            ("trend", "linear"),
            *(("edges", given) for given in ([0.0], "x", 3, [[]])),
            ("likelihood", "interval"),
        ]
    },
    **{f"target_name={value!r}": put("target_name", value=value) for value in (1, [], {}, True)},
    **{f"versions={value!r}": put("versions", value=value) for value in (None, [], "1", {"torch": 2})},
    **{f"target={value!r}": put("target", value=value) for value in (None, {}, [0, 1], {"mean": 0.0}, "x")},
    **{
        f"target {name}={value!r}": put("target", name, value=value)
        for name, value in [
            ("scale", 0.0),
            ("scale", -1.0),
            ("scale", 1e160),
            ("scale", 1e-200),
            ("mean", -1e200),
            ("scale", "1"),
            ("mean", None),
            ("mean", 10**400),
        ]
    },
    **{
        f"warp={value!r}": put("target", "warp", value=value)
        for value in (
            *([], "x", 3, {}, {"kind": "x"}, {"kind": "log"}, {"kind": "log", "top": 1e9}, {"kind": "log", "top": "a"}),
            *(
                {"kind": "spline", "start": 0.0, "step": 1.0, "values": [0.0, 1.0], "low": None, "high": None, **wrong}
                for wrong in (
                    *({"values": 3}, {"values": []}, {"values": [1.0, 0.0]}, {"values": [0.0, "x"]}),
                    *({"step": -1.0}, {"step": None}, {"low": 0.5}, {"values": [0.0, 1e300]}),
                )
            ),
        )
    },
    **{
        f"steps {wrong!r}": put(
            "target", "warp", value={"kind": "count", "values": [0, 1, 2], "edges": [0, 1], **wrong}
        )
        for wrong in ({"values": 3}, {"values": [0, 1]}, {"edges": [1, 0]}, {"edges": ["x", 1]}, {"edges": [0, 1e9]})
    },
    "no warp": drop("target", "warp"),
    **{f"preprocessing={value!r}": put("preprocessing", value=value) for value in (None, [], {}, "x")},
    "no columns": put("preprocessing", "columns", value=[]),
    "a column of no kind": put("preprocessing", "columns", 0, "kind", value="colour"),
    "a column of another kind": put("preprocessing", "columns", 0, "kind", value="categorical"),
    "an unhashable kind": put("preprocessing", "columns", 0, "kind", value=[]),
    "a column is a number": put("preprocessing", "columns", 0, value=7),
    "a column too few": drop("preprocessing", "columns", 0),
    "a column with more": put("preprocessing", "columns", 0, "extra", value=1),
    "a flag is a word": put("preprocessing", "columns", 0, "missing", value="yes"),
    "another flag": put("preprocessing", "columns", 3, "missing", value=True),
    "categories are a number": put("preprocessing", "columns", 1, "categories", value=3),
    "a category twice": put("preprocessing", "columns", 1, "categories", value=["a", "a", "b"]),
    "categories are numbers": put("preprocessing", "columns", 1, "categories", value=[1, 2, 3]),
    "a category too many": put("preprocessing", "columns", 1, "categories", value=["a", "b", "c", "d"]),
    "many categories": put("preprocessing", "columns", 1, "categories", value=[str(k) for k in range(100_000)]),
    "an unknown phase": put("preprocessing", "columns", 2, "phases", value=["moon"]),
    "names are a number": put("preprocessing", "input_columns", value=4),
    "a name is a number": put("preprocessing", "input_columns", 0, value=4),
    "a name twice": put("preprocessing", "input_columns", 0, value="color"),
    **{f"rows={value!r}": put("rows", value=value) for value in (-1, 0, "x", None, 4.5)},
    **{f"alpha_={value!r}": put("alpha", value=value) for value in ("x", None, -1.0, [])},
    **{
        f"calibration={value!r}"[:80]: put("calibration", value=value)
        for value in (
            *(0, 1.0, "x", [], {}, [1.0], {"scales": [1.0], "rows": 9.0}, {"scales": [], "weights": [], "rows": 9.0}),
            *(
                {"scales": [scale], "weights": [1.0], "rows": 9.0}
                for scale in (0, 0.0, -1.0, 2.0**64, 1e150, 1e-150, 10**400, "1", None, [1.0], 1, True)
            ),
            *(
                {"scales": [1.0, 2.0], "weights": given, "rows": 9.0}
                for given in ([1.0], [1.5, -0.5], [0.5, 0.4], [0.5, "0.5"])
            ),
            *({"scales": given, "weights": [1.0], "rows": 9.0} for given in ("1", 1.0, {"1": 1.0})),
            *({"scales": [1.0], "weights": [1.0], "rows": given} for given in (-1.0, "9", None, [], 10**400, 9)),
            {"scales": [1.0], "weights": [1.0]},
            {"scales": [1.0], "weights": [1.0], "rows": 9.0, "more": 1},
            {"scales": [1.0] * 1000, "weights": [0.001] * 1000, "rows": 9.0},
        )
    },
    **{f"scale={value!r}": put("preprocessing", "columns", 0, "scale", value=value) for value in (0.0, "1", [1.0])},
    "a target of another kind": put(
        "target",
        value={"mean": 0.0, "scale": 1.0, "warp": {"kind": "rate", "base": 1.0, "exposure": None, "exposed": False}},
    ),
    **{
        f"log_likelihoods={value!r}"[:40]: put("log_likelihoods", value=value)
        for value in ([1.0], [1.0, 1.0], [1.0] * 100, None, 3, ["x"])  # of members that were not trained exactly
    },
    **{
        f"setting {name}={value!r}": put("plan", "candidates", 0, "settings", name, value=value)
        for name, value in [("fused", "no"), ("fused", 1), ("compile", None), ("cuda_graph", "yes"), ("epochs", "5")]
    },
    **{
        f"candidate {name}={value!r}": put("plan", "candidates", 0, name, value=value)
        for name in ("calibrate", "on_all_rows", "trained_apart", "one_by_one")
        for value in (7, None, "no")
    },
    **{
        f"candidate learns_from={value!r}": put("plan", "candidates", 0, "learns_from", value=value)
        for value in ("no", 0.5, True)
    },
    **{
        f"plan {name}={value!r}": put("plan", name, value=value)
        for name, value in [
            *(("start_from_data", given) for given in (1, "yes")),
            *(("member_threads", given) for given in (0, None)),
            *(("race_steps", given) for given in ("x", 0.5)),
            *(("epoch_rows", given) for given in (None, 1.5, True)),
            *(("device", given) for given in (3, None)),
        ]
    },
    **{f"held out {value!r}": put("plan", "hold_out", "parts", value=value) for value in ("2", None, True)},
    **{
        f"plan {'.'.join(map(str, keys))}={value!r}": put("plan", *keys, value=value)
        for keys, values in [
            *(((key,), (None, 3, [], {})) for key in ("recipe", "scaling", "target", "target_because", "device")),
            *(((key,), ("1", [], {}, 1.5)) for key in ("threads", "jobs", "race_steps", "epoch_rows")),
            *((("hold_out", key), ("1", {}, [], None)) for key in ("parts", "fraction")),
            (("hold_out", "fraction"), (10**400,)),
            (("member_threads",), (1, "x", None)),
            (("copies_limit",), ("1", {})),
            (("warnings",), (None, 3)),
            *((("candidates", 0, key), ("1", {}, None)) for key in ("members", "calibrate", "one_by_one")),
            (("candidates", 0, "weights"), ("nan", [["1", "2"]], [[None, 1]], 3, [1, 2])),
            *((("candidates", 0, "settings", key), ("x", [], None)) for key in ("compile", "fused", "learning_rate")),
        ]
        for value in values
    },
    "a plan's method": put("plan", "candidates", 0, "architecture", "method", value="x"),
    **{f"validation={value!r}": put("validation", value=value) for value in (None, 3, ["mae"], {"mae": "x"})},
}


@pytest.mark.parametrize("name", WRONG)
def test_metadata_that_make_no_sense_are_refused(path: Path, saved: Path, name: str) -> None:
    tensors, metadata = storage.load(saved, KIND)
    wrong = copy.deepcopy(metadata)
    WRONG[name](wrong)
    storage.save(path, KIND, tensors, wrong)
    start = time.process_time()
    with pytest.raises(FileFormatError) as error:
        DeepBasisRegressor.load(path)
    assert time.process_time() - start < 2.0
    assert str(path) in str(error.value)


def without(name: str) -> Callable[[dict[str, torch.Tensor]], Any]:
    return lambda tensors: tensors.__delitem__(next(key for key in tensors if key.startswith(name)))


def changed(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[dict[str, torch.Tensor]], None]:
    def apply(tensors: dict[str, torch.Tensor]) -> None:
        key = next(key for key in sorted(tensors) if key.startswith(name))
        tensors[key] = change(tensors[key])

    return apply


WRONG_TENSORS: dict[str, Callable[[dict[str, torch.Tensor]], Any]] = {
    "a weight gone": without("member/0/"),
    "a member's mean gone": without("member/1/mean"),
    "a history gone": without("history/1/"),
    "a weight too many": lambda tensors: tensors.update({"member/0/extra": torch.ones(3)}),
    "another shape": changed("member/0/backbone", lambda t: torch.cat([t, t])),
    "no shape": changed("member/0/backbone", lambda t: torch.tensor(1.0, dtype=t.dtype)),
    "a weight of integers": changed("member/0/posterior", lambda t: t.long()),
    "a mean of integers": changed("member/0/mean", lambda t: t.long()),
    "complex weights": changed("member/0/mean", lambda t: t.to(torch.complex64)),
    "another precision": changed("member/0/backbone", lambda t: t.half()),
    "NaN in a weight": changed("member/0/backbone", lambda t: t * math.nan),
    "inf in a weight": changed("member/0/mean", lambda t: t + math.inf),
    "a tensor of nothing": lambda tensors: tensors.update({"mean": torch.ones(3)}),
    "a huge weight": changed("member/0/backbone", lambda t: torch.full_like(t, 1e13)),
    "a huge variance of q(w)": changed("member/1/posterior.log_diagonal", lambda t: t + 2000.0),
    "a huge noise": changed("member/0/likelihood", lambda t: t + 2000.0),
    "a history too short": changed("history/0/noise", lambda t: t[:-1]),
    "a history in float32": changed("history/0/noise", lambda t: t.float()),
    "sums of a member gone": without("learned/1/"),
    "a member's sums gone": lambda tensors: [tensors.pop(f"learned/0/{one}") for one in ("gram", "projection", "n")],
    "sums of another size": changed("learned/0/gram", lambda t: t[:-1]),
    "sums in float32": changed("learned/1/projection", lambda t: t.float()),
    "sums that are not finite": changed("learned/0/gram", lambda t: t * math.nan),
    "huge sums": changed("learned/0/projection", lambda t: torch.full_like(t, 1e31)),
    "sums of less than no rows": changed("learned/1/n", lambda t: -1.0 - t),
    "rows apart without a promise": lambda tensors: tensors.update({"apart/0/x": torch.ones(3, 4)}),
    "a history too many": lambda tensors: tensors.update({"history/0/more": tensors["history/0/noise"].clone()}),
}


@pytest.mark.parametrize("name", WRONG_TENSORS)
def test_tensors_that_make_no_sense_are_refused(path: Path, saved: Path, name: str) -> None:
    tensors, metadata = storage.load(saved, KIND)
    WRONG_TENSORS[name](tensors)
    storage.save(path, KIND, tensors, metadata)
    with pytest.raises(FileFormatError):
        DeepBasisRegressor.load(path)


@pytest.mark.parametrize(("key", "value"), [("mean", 1e150), ("mean", -9.0), ("scale", 1e3)])
def test_a_discrete_target_has_the_mean_and_scale_of_its_values(path: Path, key: str, value: float) -> None:
    X, y = numbers()
    small(target="ordinal").fit(X, (y > y.mean()) + 1.0 * (y > 0.9)).save(path)
    tensors, metadata = storage.load(path, KIND)
    put("target", key, value=value)(metadata)
    storage.save(path, KIND, tensors, metadata)
    with pytest.raises(FileFormatError, match=r"mean and scale, .* are not those of its values"):
        DeepBasisRegressor.load(path)


def test_a_noise_that_predictions_bound_must_be_finite_too(path: Path) -> None:
    small(noise="input").fit(*numbers()).save(path)
    tensors, metadata = storage.load(path, KIND)
    changed("member/0/likelihood.raw", lambda t: torch.full_like(t, 1e9))(tensors)
    storage.save(path, KIND, tensors, metadata)
    with pytest.raises(FileFormatError, match="or its noise, are not finite"):
        DeepBasisRegressor.load(path)


def test_a_classifiers_noise_is_in_no_file(path: Path) -> None:
    """It is 1: only its size relative to the latent numbers counts. With -1 probabilities were not finite."""
    small_classifier().fit(*three()).save(path)
    tensors, metadata = storage.load(path, KIND)
    assert not any("likelihood" in name for name in tensors)
    one = {"member/1/likelihood.one": torch.tensor(-1.0, dtype=tensors["member/1/mean"].dtype)}
    storage.save(path, KIND, {**tensors, **one}, metadata)
    with pytest.raises(FileFormatError, match="parameters are not those of its method"):
        DeepBasisClassifier.load(path)


def test_predictions_that_overflow_are_an_error(saved: Path) -> None:
    """Whatever the numbers of a file, none of them by itself too large, are to the rows of a table."""
    fitted = DeepBasisRegressor.load(saved).fitted_
    rows = torch.full((2, fitted.preprocessor.width), 1e308, dtype=torch.float64)
    with pytest.raises(NumericalError, match="not finite"):
        fitted.predict_encoded([rows])


HUGE: dict[str, dict[str, int]] = {
    "rank": {"rank": 10**9},
    "rank, less": {"rank": 12_000},
    "rank beyond 64 bits": {"rank": 10**30},
    "width": {"width": 10**9},
    "width, less": {"width": 8_000},
    "blocks": {"blocks": 10**9},
    "blocks, less": {"blocks": 20_000},
}


LOADER = """
import resource, signal, sys, time
from pathlib import Path
from deepbasis import DeepBasisRegressor
from deepbasis.errors import FileFormatError, NumericalError

def too_long(number, frame):
    raise KeyboardInterrupt

good, *others = sys.argv[1:]
DeepBasisRegressor.load(good)  # whatever has to be imported and warmed up
pages = int(Path("/proc/self/statm").read_text().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 2**30,) * 2)  # a failing test does no harm
signal.signal(signal.SIGALRM, too_long)
for path in others:
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    peak = lambda: int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
    before, start, verdict = peak(), time.process_time(), "loaded"
    signal.alarm(3)
    try:
        DeepBasisRegressor.load(path)
    except FileFormatError:
        verdict = "refused"
    except KeyboardInterrupt:
        verdict = "hangs"
    except Exception as error:
        verdict = type(error).__name__
    signal.alarm(0)
    print(verdict, time.process_time() - start, (peak() - before) / 1024, flush=True)
"""


@pytest.fixture(scope="module")
def cost(saved: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, float, float]]:
    """For each name in HUGE: what a process of its own said, the seconds, the MiB."""
    folder = tmp_path_factory.mktemp("huge")
    tensors, metadata = storage.load(saved, KIND)
    paths = []
    for number, sizes in enumerate(HUGE.values()):
        paths.append(folder / f"{number}.safetensors")
        storage.save(paths[-1], KIND, tensors, forged(metadata, **sizes))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", LOADER, saved, *paths], capture_output=True, text=True, timeout=100, env=environment
    )
    lines = [line.split() for line in done.stdout.splitlines()]
    found = {name: (line[0], float(line[1]), float(line[2])) for name, line in zip(HUGE, lines, strict=False)}
    return found | {name: (done.stderr[-300:] or "died", 0.0, 0.0) for name in HUGE if name not in found}


@pytest.mark.parametrize("name", HUGE)
def test_a_file_that_claims_to_be_huge_is_refused(path: Path, saved: Path, name: str) -> None:
    tensors, metadata = storage.load(saved, KIND)
    storage.save(path, KIND, tensors, forged(metadata, **HUGE[name]))
    start = time.process_time()
    with pytest.raises(FileFormatError):
        DeepBasisRegressor.load(path)
    assert time.process_time() - start < 2.0


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="measures memory the Linux way")
@pytest.mark.parametrize("name", HUGE)
def test_a_small_file_that_claims_to_be_huge_is_refused_at_once(
    cost: dict[str, tuple[str, float, float]], name: str
) -> None:
    verdict, seconds, mebibytes = cost[name]
    assert verdict == "refused"
    assert seconds < 1.0
    assert mebibytes < 50.0
