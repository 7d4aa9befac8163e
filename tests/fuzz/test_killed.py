"""SIGKILL at any moment of a save, a fit, a prediction and an update: nothing is lost, and nothing is half there."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

KILLS = 100 if os.environ.get("DEEPBASIS_FULL_FUZZ") == "1" else 10

Killed = Callable[[str, Path], dict[str, Any]]
"""What is to be killed and the folder that it works in -> what was seen."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork"),
]


@pytest.fixture
def killed(record_property: Callable[[str, object], None]) -> Killed:
    def run(what: str, folder: Path) -> dict[str, Any]:
        seen = _killed(what, folder)
        record_property("right", seen["kills"])
        return seen

    return run


def _killed(what: str, folder: Path) -> dict[str, Any]:
    script = Path(__file__).with_name("killed.py")
    done = subprocess.run(
        [sys.executable, str(script), what, str(folder), str(KILLS)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    seen = json.loads(done.stdout)
    assert seen["kills"] >= KILLS
    return seen


def test_a_file_is_the_old_one_or_the_new_one(tmp_path: Path, killed: Killed) -> None:
    seen = killed("save", tmp_path)
    assert sum(seen["seen"]) >= KILLS
    assert seen["left"] == ["model.safetensors"], "what killed writers left is swept up"


def test_a_model_that_is_updated_is_the_old_one_or_the_new_one(tmp_path: Path, killed: Killed) -> None:
    seen = killed("update", tmp_path)
    assert sum(seen["seen"]) >= KILLS
    assert min(seen["seen"]) > 0, "the kills are spread over an update"
    assert seen["left"] == ["model.safetensors"]


def test_a_fit_that_is_resumed_ends_byte_for_byte_as_if_it_had_not_been_killed(tmp_path: Path, killed: Killed) -> None:
    seen = killed("fit", tmp_path)
    assert (seen["different"], seen["left"]) == (0, [])
    assert seen["results"] >= 2


def test_parts_of_predictions_are_whole_or_not_there(tmp_path: Path, killed: Killed) -> None:
    seen = killed("predict", tmp_path)
    assert seen["left"] == []
    assert len(seen["parts"]) > 2, "the kills are spread over the parts"
