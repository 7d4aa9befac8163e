"""Parts: computed once, found again, refused when they are another's; and the tables made from them."""

import csv
import io

import pytest
import torch

from deepbasis.errors import CheckpointMismatchError
from deepbasis.paper import parts
from deepbasis.paper.parts import Folder, Part, Row


@pytest.fixture
def folder(tmp_path) -> Folder:
    return Folder(tmp_path / "out", torch.device("cpu"), tell=lambda line: None)


def count(calls: list[int]):
    def compute() -> parts.Content:
        calls.append(1)
        return {"answer": 42, "nothing": None}, {"x": torch.arange(3.0)}

    return compute


def test_a_part_is_computed_once(folder):
    calls: list[int] = []
    first = folder.part("a", {"n": 5}, count(calls))
    second = folder.part("a", {"n": 5}, count(calls))
    assert calls == [1]
    assert first.values == second.values == {"answer": 42, "nothing": None}
    assert torch.equal(second.arrays["x"], torch.arange(3.0))
    assert second.made == first.made
    assert {"date", "command", "torch", "python", "cpu", "seconds"} <= second.made.keys()


def test_a_part_of_other_settings_is_refused_and_kept(folder):
    folder.part("a", {"n": 5, "m": 1}, count([]))
    before = (folder.path / "parts" / "a.safetensors").read_bytes()
    with pytest.raises(CheckpointMismatchError, match=r"a\.safetensors was made with other settings \(n\)"):
        folder.part("a", {"n": 6, "m": 1}, count([]))
    assert (folder.path / "parts" / "a.safetensors").read_bytes() == before


def test_only_some_parts_are_computed_and_what_is_there_is_always_found(folder):
    folder.part("pol-silu", {}, count([]))
    folder.only = ("kin",)
    calls: list[int] = []
    assert folder.part("pol-rbf", {}, count(calls)) is None
    assert folder.part("pol-silu", {}, count(calls)) is not None
    assert calls == []
    assert folder.part("kin40k-rbf", {}, count(calls)) is not None
    assert calls == [1]


def test_a_part_that_fails_leaves_nothing_and_keeps_its_checkpoint(folder):
    def fail() -> parts.Content:
        folder.checkpoint("a").write_bytes(b"half of it")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        folder.part("a", {}, fail)
    assert [path.name for path in (folder.path / "parts").iterdir()] == ["a.training"]
    folder.part("a", {}, count([]))
    assert [path.name for path in (folder.path / "parts").iterdir()] == ["a.safetensors"]


def test_a_tidy_table_has_the_columns_and_an_empty_cell_for_nothing():
    text = parts.tidy_csv(Row._fields, [Row("pol", "paper", "", "dbk-silu", "nll", -2.5, None, -2.967)])
    (row,) = csv.DictReader(io.StringIO(text))
    assert list(row) == ["dataset", "split", "setting", "method", "metric", "mean", "std", "paper"]
    assert (float(row["mean"]), row["std"], float(row["paper"])) == (-2.5, "", -2.967)


def test_summary_is_the_sample_standard_deviation():
    assert parts.summary([1.0, 2.0, 4.0]) == pytest.approx((7 / 3, (14 / 6) ** 0.5))
    assert parts.summary([3.0]) == (3.0, None)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.2936, ".2936"), (-0.25, "-.2500"), (-1.7755, "-1.7755"), (10.5, "10.5000"), (None, "–"), (float("nan"), "–")],
)
def test_numbers_look_as_in_the_paper(value, text):
    assert parts.number(value) == text


def test_provenance_names_each_command_once():
    made = {
        "date": "2026-11-15T10:00:00+00:00",
        "gpu": "GPU",
        "torch": "2",
        "python": "3",
        "deepbasis": "0",
        "seconds": 2.0,
    }
    told = parts.provenance(
        [Part(name, {}, {}, {**made, "command": f"deepbasis reproduce uci --only {name} --out o"}) for name in "ab"]
    )
    assert told.count("deepbasis reproduce uci") == 1
    assert "`deepbasis reproduce uci --only PART --out OUT`" in told
    assert "2 parts, 4 s" in told


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("reproduce uci --debug --out results/uci --only a", "reproduce uci --out results/uci --only PART"),
        ("reproduce uci --only a --only b --out elsewhere/uci --debug", "reproduce uci --only PART --out OUT"),
        ("reproduce uci --device cuda", "reproduce uci --device cuda"),
    ],
)
def test_a_command_is_told_without_what_was_of_one_run_alone(command, told):
    assert parts._general(command) == told
