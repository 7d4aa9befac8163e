"""What a user of an installed package does, outside of the checkout: `try_wheel.py`, or `try_wheel.py cli`.

Without an argument: with the core dependencies alone; what needs an extra must say which. With "cli": the command.
"""

import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

import deepbasis
from deepbasis import DeepBasisClassifier, DeepBasisRegressor, InputError


def table(rows: int = 200) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, size=(rows, 3))
    return X, np.sin(3 * X[:, 0]) + 0.1 * rng.normal(size=rows)


def core(folder: Path) -> None:
    X, y = table()
    model = DeepBasisRegressor(random_state=0, method="dbk-silu", members=2, epochs=100).fit(X[:150], y[:150])
    mean, std = model.predict(X[150:], return_std=True)
    assert np.abs(mean - y[150:]).mean() < 0.2
    assert (std > 0).all()
    model.save(folder / "model.safetensors")
    assert np.allclose(DeepBasisRegressor.load(folder / "model.safetensors").predict(X[150:]), mean)
    classes = DeepBasisClassifier(random_state=0, members=2, epochs=5).fit(X, y > 0)
    assert np.allclose(classes.predict_proba(X).sum(axis=1), 1)

    (folder / "table.csv").write_text("x,y\n1,2\n")
    refused("deepbasis[tables]", lambda: model.predict_frame(X))
    refused("deepbasis[tables]", lambda: model.fit_dataset(folder / "table.csv", "y"))
    refused("deepbasis[plots]", lambda: model.predict_dist(X).plot())
    told = subprocess.run([sys.executable, "-m", "deepbasis", "--help"], capture_output=True, text=True, check=False)
    assert told.returncode == 2
    assert "pip install 'deepbasis[cli" in told.stderr


def refused(extra: str, call: Callable[[], object]) -> None:
    told = ""
    try:
        call()
    except InputError as error:
        told = str(error)
    assert f"pip install '{extra}'" in told, f"without {extra}: {told or 'no error'}"


def cli(folder: Path) -> None:
    X, y = table()
    lines = [",".join(map(str, [*row, target, "ab"[k % 2]])) for k, (row, target) in enumerate(zip(X, y, strict=True))]
    (folder / "table.csv").write_text("\n".join(["a,b,c,y,letter", *lines]))
    fit = "fit table.csv --target y --method dbk-silu --members 2 --epochs 20 --seed 0 --out model.safetensors"
    for words in (fit, "info model.safetensors", "predict model.safetensors table.csv --out predictions.csv"):
        command = [Path(sys.executable).with_name("deepbasis"), *words.split()]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    assert (folder / "predictions.csv").read_text().startswith("mean,std,lower_95,upper_95\n")


if __name__ == "__main__":
    assert "site-packages" in deepbasis.__file__, f"{deepbasis.__file__} is not an installed package"
    with tempfile.TemporaryDirectory() as temporary:
        (cli if sys.argv[1:] == ["cli"] else core)(Path(temporary))
    print(f"deepbasis {deepbasis.__version__} works in {sys.prefix}, {'with' if sys.argv[1:] else 'without'} extras")
