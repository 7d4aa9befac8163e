"""Benchmarks that are run in parts: what is recorded stays."""

import json
import sys
from pathlib import Path

import pandas as pd
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import costs
import trust_copies


def test_splits_are_added_to_those_recorded(tmp_path):
    file, one = tmp_path / "copies.csv", {"rows": 5, "coverage_by_inputs": 0.9400001, "device": "a"}
    assert trust_copies.missing(trust_copies.recorded(file), 3) == [0, 1, 2]
    for number, run in ((2, "first"), (0, "first"), (1, "second")):
        found = trust_copies.add(file, {"split": number, **one, "device": run[0]}, run)
    assert trust_copies.missing(found, 5) == [3, 4]
    pd.testing.assert_frame_equal(trust_copies.recorded(file), found.reset_index(drop=True).round(6))
    assert list(found["device"]) == ["f", "s", "f"]
    assert [line for line in file.read_text().splitlines() if line.startswith("#")] == ["# first", "# second"]


def test_recorded_splits_say_what_they_were_fitted_on():
    found = trust_copies.recorded(trust_copies.RESULTS / trust_copies.FILE)
    assert found["split"].is_unique
    assert found["device"].notna().all()


def test_parts_of_the_costs_are_merged(tmp_path):
    file, number = tmp_path / "costs.json", {"median": 1.0, "low": 1.0, "high": 2.0}
    costs.keep(file, "fits", {"cpu": "a"}, [{"table": "x", "seconds": number}])
    costs.keep(file, "suite", {"cpu": "a"}, [{"table": "yacht", "seconds": 1}, {"table": "pol", "seconds": 2}])
    costs.keep(file, "suite", {"cpu": "b"}, [{"table": "yacht", "seconds": 3}])
    costs.keep(file, "fits", {"cpu": "b"}, [{"table": "y", "seconds": number}])
    found = json.loads(file.read_text())
    assert found["fits"] == {"machine": {"cpu": "b"}, "rows": [{"table": "y", "seconds": number}]}
    suite = {row["table"]: (row["seconds"], row["machine"]["cpu"]) for row in found["suite"]["rows"]}
    assert suite == {"yacht": (3, "b"), "pol": (2, "a")}
    assert "| y | 1 (1 to 2) |" in costs.markdown(found["fits"]["rows"])


def test_turns_count_every_call_alike():
    seen: list[str] = []
    calls = {name: (lambda name=name: seen.append(name)) for name in ("a", "b")}
    found = costs.in_turns(calls, 3, warm=True)
    assert {name: len(values) for name, values in found.items()} == {"a": 3, "b": 3}
    assert seen == ["a", "b", "b", "a", "a", "b", "b", "a"]
    assert costs.spread([3.0, 1.0, 2.0]) == {"median": 2.0, "low": 1.0, "high": 3.0}


def test_a_mean_without_a_look_is_that_of_predict():
    X, y = costs.table(120, 3)
    model = costs.fitted(X, y, epochs=2, method="dbk-silu", members=2, target="identity")
    assert costs.without_a_look(model.fitted_, X) == pytest.approx(model.predict(X), rel=1e-12)
