"""Ray: a fit by several workers of Ray Train, and predictions of Ray Data's batches.

The workers run the same engine as those of torchrun, and find the same model. torchrun needs nothing else installed;
this is for those who have a Ray cluster already.
"""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike, fspath
from typing import Any

from deepbasis.engine import distributed
from deepbasis.errors import InputError
from deepbasis.estimators import DeepBasisRegressor
from deepbasis.interop.frames import FramePredictor

try:
    import ray.data
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer
except ModuleNotFoundError:
    raise ModuleNotFoundError("deepbasis.interop.ray needs Ray: pip install 'deepbasis[ray]'") from None


def fit_with_ray(
    data: str | PathLike[str],
    target: str,
    out: str | PathLike[str],
    *,
    workers: int = 2,
    arguments: Mapping[str, Any] | None = None,
    use_gpu: bool = False,
    storage: str | PathLike[str] | None = None,
    **options: Any,
) -> DeepBasisRegressor:
    """Fit a table in files by so many workers of Ray Train, and write the model to `out`, which all of them can reach.

    `arguments` are those of `DeepBasisRegressor`, `options` those of its `fit_dataset`: weight, groups, drop, memory,
    checkpoint and so on. `storage` is where Ray keeps what it writes itself.
    """
    if workers < 1:
        raise InputError(f"workers must be at least 1, got {workers}")
    given = {"data": fspath(data), "target": target, "out": fspath(out), "arguments": dict(arguments or {})}
    trainer = TorchTrainer(
        _fit_at_worker,
        train_loop_config={**given, "options": options},
        scaling_config=ScalingConfig(num_workers=workers, use_gpu=use_gpu),
        torch_config=TorchConfig(backend="cpu:gloo,cuda:nccl" if use_gpu else "gloo"),
        run_config=RunConfig(storage_path=None if storage is None else fspath(storage)),
    )
    trainer.fit()
    return DeepBasisRegressor.load(out)


def _fit_at_worker(given: dict[str, Any]) -> None:
    """What each worker does; Ray has made the process group, and ends it."""
    team = distributed.start()
    model = DeepBasisRegressor(**given["arguments"])
    model.fit_dataset(given["data"], given["target"], team=team, **given["options"])
    if team.first:
        model.save(given["out"])
    team.barrier()


def predict_with_ray(
    model: str | PathLike[str], table: ray.data.Dataset, *, workers: int = 2, batch_rows: int = 65_536, **options: Any
) -> Any:
    """A Ray data set of predictions, batch by batch; `options` are those of `FramePredictor`."""
    return table.map_batches(
        FramePredictor,
        fn_constructor_args=(fspath(model),),
        fn_constructor_kwargs=options,
        batch_format="pandas",
        batch_size=batch_rows,
        concurrency=workers,
    )
