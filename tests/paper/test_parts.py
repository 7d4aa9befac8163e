"""Parts: computed once, found again, refused when they are another's; and the tables made from them."""

import csv
import io
import json
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from deepbasis.errors import CheckpointMismatchError, FileFormatError
from deepbasis.paper import parts
from deepbasis.paper.parts import Folder, Part, Row
from deepbasis.paper.records import Records, to_draw


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
    before = (folder.path / "parts.jsonl").read_bytes()
    with pytest.raises(CheckpointMismatchError, match=r"parts\.jsonl: part a was made with other settings \(n\)"):
        folder.part("a", {"n": 6, "m": 1}, count([]))
    assert (folder.path / "parts.jsonl").read_bytes() == before


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
    assert not folder.has("a")
    folder.part("a", {}, count([]))
    assert folder.has("a")
    assert list((folder.path / "parts").iterdir()) == []


def test_a_part_that_is_added_to_keeps_its_line_and_says_how_it_was_made_before(folder):
    first = folder.part("a", {}, count([]))
    folder.part("b", {}, count([]))
    more = folder.part("a", {}, count([]), extend=lambda part: ({**part.values, "answer": 43}, part.arrays))
    assert more.values["answer"] == 43
    assert more.made["before"] == first.made
    assert torch.equal(more.arrays["x"], first.arrays["x"])
    lines = [json.loads(line) for line in (folder.path / "parts.jsonl").read_text().splitlines()]
    assert [line["name"] for line in lines] == ["a", "b"]
    assert lines[0]["values"] == more.values


def test_another_device_records_into_the_same_folder(folder):
    folder.on(torch.device("meta")).part("a", {}, count([]))
    assert folder.part("a", {}, count([])).made["device"] == "meta"


# ---- the files -----------------------------------------------------------------------------------------------------


def line_of(name: str, value: float = 0.1) -> dict[str, object]:
    return {"name": name, "settings": {"n": [1, 2]}, "values": {"μ": value}, "made": {"seconds": 1.5}}


def test_lines_come_back_to_the_last_digit(tmp_path):
    value = 0.1 + 0.2  # needs all seventeen digits
    Records(tmp_path).put(line_of("a", value), {})
    assert Records(tmp_path).lines() == {"a": line_of("a", value)}
    assert [file.name for file in tmp_path.iterdir()] == ["parts.jsonl"]


def test_arrays_come_back_with_their_shapes_and_of_a_part_made_again_only_the_new_ones(tmp_path):
    arrays = {
        "map": torch.tensor([[1.5, torch.nan, -torch.inf], [0.0, 2.0**-30, 3.0e38]]),
        "cells": torch.tensor([[-2_150, 690], [2**24, 0]], dtype=torch.int32),
        "nothing": torch.empty(0, 2),
    }
    Records(tmp_path).put(line_of("a"), arrays)
    Records(tmp_path).put(line_of("b"), {"y": torch.ones(3)})
    read = Records(tmp_path).arrays("a")
    assert read.keys() == arrays.keys()
    for name, array in arrays.items():
        torch.testing.assert_close(read[name], array.float(), rtol=0, atol=0, equal_nan=True)
    Records(tmp_path).put(line_of("a"), {"z": torch.zeros(1)})
    assert list(Records(tmp_path).arrays("a")) == ["z"]
    assert torch.equal(Records(tmp_path).arrays("b")["y"], torch.ones(3))


def test_what_is_drawn_has_three_digits():
    array = torch.linspace(-3.0, 3.0, 1001)
    torch.testing.assert_close(to_draw(array), array, rtol=5e-4, atol=1e-7)


def test_processes_side_by_side_lose_nothing_of_each_other(tmp_path):
    """Each with its own view of the folder, as processes have."""

    def record(worker: int) -> None:
        own = Records(tmp_path)
        for k in range(8):
            own.put(line_of(f"{worker}-{k}"), {"x": torch.tensor([worker, k])})

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(record, range(4)))
    names = {f"{worker}-{k}" for worker in range(4) for k in range(8)}
    assert Records(tmp_path).lines().keys() == names
    assert all(Records(tmp_path).arrays(name)["x"].tolist() == [int(k) for k in name.split("-")] for name in names)


def test_a_folder_sees_what_another_process_has_recorded_meanwhile(folder):
    assert not folder.has("a")
    Folder(folder.path, torch.device("cpu"), tell=lambda line: None).part("a", {}, count([]))
    assert folder.has("a")


@pytest.mark.parametrize("damaged", ['{"name": "b"', '{"name": "b"}', "[1]", "3", "null"])
def test_a_damaged_line_is_named(tmp_path, damaged):
    records = Records(tmp_path)
    records.put(line_of("a"), {})
    with records.file.open("a") as file:
        file.write(damaged + "\n")
    with pytest.raises(FileFormatError, match=r"parts\.jsonl, line 2 is no part"):
        records.lines()


def test_arrays_that_cannot_be_read_are_named(tmp_path):
    records = Records(tmp_path)
    records.put(line_of("a"), {"x": torch.ones(1)})
    (tmp_path / "arrays.parquet").write_bytes(b"PAR1 and then nothing")
    with pytest.raises(FileFormatError, match=r"arrays\.parquet cannot be read"):
        records.arrays("a")


# ---- tables --------------------------------------------------------------------------------------------------------


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
