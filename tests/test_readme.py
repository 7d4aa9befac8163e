"""The documents are true: README's code runs, its links lead somewhere, and the map of the paper is complete."""

import ast
import json
import os
import re
import shlex
import subprocess
import sys
import textwrap
from functools import cache
from importlib import import_module
from pathlib import Path
from types import CodeType

import numpy as np
import pandas as pd
import pytest
from typer.main import get_command

import deepbasis
from deepbasis import cli

ROOT = Path(__file__).parent.parent
PYTHON_BLOCK = re.compile(r"^(?P<indent> *)```python\n(?P<code>.*?)^(?P=indent)```$", re.DOTALL | re.MULTILINE)
IN_BACKTICKS = re.compile(r"`([^`]+)`")
PARTS_OF_THE_PAPER = [
    *(f"Eq. {number}" for number in range(1, 20)),
    *(f"Theorem {number}" for number in range(1, 5)),
    "Corollary 1",
    *(f"Algorithm {number}" for number in range(1, 5)),
]
DOCUMENTS = ["README.md", "CONTRIBUTING.md", "docs/engine.md", "docs/notation.md", "docs/paper_map.md"]


def read(document: str) -> str:
    return (ROOT / document).read_text(encoding="utf-8")


# README ---------------------------------------------------------------------------------------------------------------


def readme_code() -> list[CodeType]:
    """Every block, compiled so that a traceback names README's own line."""
    text = read("README.md")
    blocks = list(PYTHON_BLOCK.finditer(text))
    assert len(blocks) == text.count("```python") > 0
    lines_before = [text[: block.start("code")].count("\n") for block in blocks]
    sources = [
        "\n" * before + textwrap.dedent(block["code"]) for before, block in zip(lines_before, blocks, strict=True)
    ]
    return [compile(source, "README.md", "exec") for source in sources]


def test_readme_code_names_what_exists() -> None:
    """It compiles, its imports work, and its regressors have the arguments that they are given."""
    assert readme_code()
    code = "\n".join(textwrap.dedent(block["code"]) for block in PYTHON_BLOCK.finditer(read("README.md")))
    tree = ast.parse(code)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] == "deepbasis":
            for alias in node.names:
                assert hasattr(import_module(node.module), alias.name), alias.name
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "DeepBasisRegressor":
            assert {keyword.arg for keyword in node.keywords} <= set(deepbasis.DeepBasisRegressor().get_params())


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_readme_code_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every block in order, in one namespace; what the text claims stands in them as asserts."""
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {}
    for code in readme_code():
        exec(code, namespace)


def readme_commands() -> list[str]:
    block = re.search(r"```sh\n(deepbasis fit.*?)```", read("README.md"), re.DOTALL)
    assert block is not None
    return block[1].strip().splitlines()


def test_readme_shell_commands_have_options_that_exist() -> None:
    commands = get_command(cli.app).commands
    for line in readme_commands():
        _, name, *words = shlex.split(line, comments=True)
        known = {option for given in commands[name].params for option in given.opts}
        assert {word for word in words if word.startswith("-") and word != "-"} <= known


@pytest.mark.slow
def test_readme_shell_commands_run(tmp_path: Path) -> None:
    """The three commands, on a table with the columns that they name."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, 240)
    table = pd.DataFrame({"row": np.arange(240), "x": x, "price": np.sin(3 * x) + rng.normal(0, 0.2, 240)})
    for name, part in (("train", table[:160]), ("test", table[160:200]), ("new", table[200:].drop(columns="price"))):
        part.to_csv(tmp_path / f"{name}.csv", index=False)
    for line in readme_commands():
        command = [sys.executable, "-m", *shlex.split(line)]
        run = subprocess.run(
            command,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            check=False,
        )
        assert run.returncode == 0, run.stderr
    predictions = pd.read_csv(tmp_path / "predictions.csv")
    assert list(predictions.columns) == ["row", "mean", "std", "lower_95", "upper_95"]
    assert (predictions["row"] == table["row"][200:].to_numpy()).all()
    assert json.loads(run.stdout)["nll"] < 0.2


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_to_files(document: str) -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", read(document))
    local = [target for target in targets if "://" not in target]
    missing = [target for target in local if not (ROOT / document).parent.joinpath(target).exists()]
    assert missing == []


# The map of the paper -------------------------------------------------------------------------------------------------


def rows_of(document: str) -> list[list[str]]:
    """The cells of every table row, headers and rulers included."""
    lines = [line for line in read(document).splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def map_rows() -> dict[str, list[str]]:
    """What -> (says, function, test)."""
    rows = [cells for cells in rows_of("docs/paper_map.md") if len(cells) == 4 and not set(cells[0]) <= set("- ")]
    assert len({cells[0] for cells in rows}) == len(rows), "a row stands twice"
    return {cells[0]: cells[1:] for cells in rows if cells[0] != "what"}


def resolve(name: str) -> object:
    """A dotted name below `deepbasis`: the longest module that can be imported, then attributes."""
    parts = ["deepbasis", *name.split(".")]
    for length in range(len(parts), 0, -1):
        try:
            found: object = import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for attribute in parts[length:]:
            found = getattr(found, attribute)
        return found
    raise AssertionError("deepbasis itself cannot be imported")


@cache
def functions_in(path: Path) -> set[str]:
    """Names of test functions, also `Class::method`."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}::{item.name}" for item in node.body if isinstance(item, ast.FunctionDef)}
    return names


@pytest.mark.parametrize("part", PARTS_OF_THE_PAPER)
def test_map_has_every_part_of_the_paper(part: str) -> None:
    says, _, test = map_rows()[part]
    assert says
    assert "::" in test, f"{part} has no test"


def test_map_names_functions_that_exist() -> None:
    named = [name for _, function, _ in map_rows().values() for name in IN_BACKTICKS.findall(function)]
    assert len(named) >= len(PARTS_OF_THE_PAPER)
    for name in named:
        assert resolve(name) is not None, name


def test_map_names_tests_that_exist() -> None:
    named = [name for _, _, test in map_rows().values() for name in IN_BACKTICKS.findall(test)]
    missing = []
    for name in named:
        file, _, function = name.partition("::")
        path = ROOT / "tests" / file
        if not function.startswith("test_") or not path.is_file() or function not in functions_in(path):
            missing.append(name)
    assert missing == []


def test_map_lists_every_note_in_the_code() -> None:
    """Each file of the package with NOTE[GAP] or NOTE[DIFF] stands in the map with as many of each."""
    found = {}
    for path in sorted((ROOT / "src" / "deepbasis").rglob("*.py")):
        kinds = sorted(re.findall(r"NOTE\[(GAP|DIFF)\]", path.read_text(encoding="utf-8")))
        if kinds:
            found[path.relative_to(ROOT / "src" / "deepbasis").as_posix()] = kinds
    listed: dict[str, list[str]] = {}
    for cells in rows_of("docs/paper_map.md"):
        if len(cells) == 3 and cells[1] in ("GAP", "DIFF"):
            listed.setdefault(cells[0].strip("`"), []).append(cells[1])
    assert {file: sorted(kinds) for file, kinds in listed.items()} == found


# Citation -------------------------------------------------------------------------------------------------------------


def test_citation_names_this_version_the_paper_and_its_authors() -> None:
    software, _, paper = read("CITATION.cff").partition("preferred-citation:")
    assert f"version: {deepbasis.__version__}\n" in software
    assert "name: The deepbasis developers" in software
    assert "title: Scalable Deep Basis Kernel Gaussian Processes" in paper
    given, family = (re.findall(rf"{part}-names: (.+)", paper) for part in ("given", "family"))
    authors = [" ".join(names) for names in zip(given, family, strict=True)]
    assert authors == ["Yunqin Zhu", "Henry Shaowu Yuchi", "Yao Xie"]
    assert all(author in read("README.md").replace("\n", " ") for author in authors)


# Notation -------------------------------------------------------------------------------------------------------------


def test_notation_names_things_that_exist() -> None:
    """In the table's second column, what has a dot in it is a name below `deepbasis`."""
    names = [name for cells in rows_of("docs/notation.md") for name in IN_BACKTICKS.findall(cells[1])]
    dotted = [name for name in names if re.fullmatch(r"[a-z]\w*(\.\w+)+", name)]
    assert dotted
    for name in dotted:
        assert resolve(name) is not None, name
