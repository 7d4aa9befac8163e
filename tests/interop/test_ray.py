"""Ray on a local cluster of two workers: the model that torchrun finds, and the predictions of one process."""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from deepbasis import DeepBasisRegressor

SMALL = {"method": "dbk-silu", "members": 2, "rank": 8, "inner": 16, "epochs": 2, "batch_size": 32, "random_state": 0}


def table(rows: int, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    found = pd.DataFrame({"row": np.arange(rows), "a": rng.normal(size=rows), "town": rng.choice(["x", "y"], rows)})
    found["y"] = np.sin(found["a"]) + (found["town"] == "x") + 0.1 * rng.normal(size=rows)
    return found


@pytest.fixture
def cluster() -> Iterator[Any]:
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'deepbasis[ray]'")
    environment = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2] / "src")])}
    ray.init(num_cpus=3, include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": environment})
    yield ray
    ray.shutdown()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore")  # those of Ray's own inside
def test_ray_finds_the_model_of_torchrun(
    cluster: Any, two_workers: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    from deepbasis.interop.ray import fit_with_ray, predict_with_ray

    rows, new = table(400), table(50, seed=1)
    rows.to_parquet(tmp_path / "train.parquet", index=False)
    made = [tmp_path / name for name in ("ray.safetensors", "torchrun.safetensors")]
    by_ray = fit_with_ray(
        tmp_path / "train.parquet", "y", made[0], arguments=SMALL, drop=["row"], storage=tmp_path / "ray"
    )
    words = ["--method", "dbk-silu", "--members", 2, "--rank", 8, "--inner", 16, "--epochs", 2, "--batch-size", 32]
    run = two_workers(
        *("-m", "deepbasis", "fit", tmp_path / "train.parquet", "--target", "y", "--drop", "row", "--seed", 0),
        *(*words, "--out", made[1], "--quiet"),
    )
    assert run.returncode == 0, run.stderr
    ours, theirs = (one.predict_frame(new[["a", "town"]]) for one in (DeepBasisRegressor.load(made[1]), by_ray))
    pd.testing.assert_frame_equal(ours, theirs, rtol=1e-6)

    predicted = predict_with_ray(made[0], cluster.data.from_pandas(new), batch_rows=20, keep=["row"]).to_pandas()
    predicted = predicted.sort_values("row", ignore_index=True)
    pd.testing.assert_frame_equal(predicted.drop(columns="row").astype(float), theirs, rtol=1e-5)
