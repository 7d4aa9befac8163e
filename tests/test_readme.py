"""The documents are true: their code runs, their links lead somewhere, and the map of the paper is complete."""

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
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.main import get_command

import deepbasis
from deepbasis.cli import app

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"^(?P<indent> *)```(?P<language>\w+)\n(?P<code>.*?)^(?P=indent)```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
IN_BACKTICKS = re.compile(r"`([^`]+)`")
PARTS_OF_THE_PAPER = [
    *(f"Eq. {number}" for number in range(1, 20)),
    *(f"Theorem {number}" for number in range(1, 5)),
    "Corollary 1",
    *(f"Algorithm {number}" for number in range(1, 5)),
    *(f"Fig. {number}" for number in range(1, 11)),
    *(f"Table {number}" for number in range(1, 3)),
]
MADE = {"gallery", "generated"}
"""Folders of docs/ that `make docs` makes; it checks what is in them, and links to them."""
PAGES = sorted(
    page.relative_to(ROOT).as_posix() for page in ROOT.glob("docs/**/*.md") if not MADE & set(page.parent.parts)
)
GUIDES = [page for page in PAGES if page.startswith("docs/howto/")]
DOCUMENTS = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "examples/data/LICENCES.md", *PAGES]
WITHOUT_CODE = {"docs/howto/index.md", "docs/howto/limits.md", "docs/howto/tables.md"}
SCRIPTS = [
    "README.md",
    "docs/quickstart.md",
    "docs/pytorch.md",
    "docs/interop.md",
    *(page for page in GUIDES if page not in WITHOUT_CODE),
]
"""Documents whose Python blocks, one after another, are a program."""


def read(document: str) -> str:
    return (ROOT / document).read_text(encoding="utf-8")


# Code -----------------------------------------------------------------------------------------------------------------


def python_blocks(document: str) -> list[str]:
    """The blocks, each moved down to its own line, so that a traceback names the line of the document."""
    text = read(document)
    found = [block for block in BLOCK.finditer(text) if block["language"] == "python"]
    assert len(found) == text.count("```python")
    return ["\n" * text[: block.start("code")].count("\n") + textwrap.dedent(block["code"]) for block in found]


def shell_lines(document: str) -> list[str]:
    """Calls of our command, from `deepbasis` on, without comments."""
    code = [block["code"] for block in BLOCK.finditer(read(document)) if block["language"] == "sh"]
    lines = [line.partition(" #")[0] for line in "".join(code).splitlines()]
    return [line[line.index("deepbasis ") :] for line in lines if re.search(r"(^|-m )deepbasis ", line)]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("document", SCRIPTS)
def test_code_runs(document: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every block in order, in one namespace; what the text claims stands in them as asserts."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    blocks = python_blocks(document)
    assert blocks
    namespace: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, document, "exec"), namespace)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_code_names_what_exists(document: str) -> None:
    """It compiles, its imports work, and its regressors have the arguments that they are given."""
    for block in python_blocks(document):
        for node in ast.walk(compile(block, document, "exec", ast.PyCF_ONLY_AST)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "deepbasis":
                for name in node.names:
                    assert resolve(f"{node.module}.{name.name}".partition(".")[2]) is not None
            elif isinstance(node, ast.Call) and ast.unparse(node.func) == "DeepBasisRegressor":
                named = {keyword.arg for keyword in node.keywords if keyword.arg is not None}
                assert named <= set(deepbasis.DeepBasisRegressor().get_params())


@pytest.mark.parametrize("document", DOCUMENTS)
def test_commands_and_their_options_exist(document: str) -> None:
    command: Any = get_command(app)
    for line in shell_lines(document):
        name, *words = shlex.split(line)[1:]
        options = {option for parameter in command.commands[name].params for option in parameter.opts}
        assert {word for word in words if word.startswith("-") and word != "-"} <= options, line


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_readme_shell_commands_run(tmp_path: Path) -> None:
    """The commands, on a table with the columns that they name."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, 240)
    table = pd.DataFrame({"row": np.arange(240), "x": x, "price": np.sin(3 * x) + rng.normal(0, 0.2, 240)})
    for name, part in (("train", table[:160]), ("test", table[160:200]), ("new", table[200:].drop(columns="price"))):
        part.to_csv(tmp_path / f"{name}.csv", index=False)
    table[200:].to_csv(tmp_path / "july.csv", index=False)
    lines = shell_lines("README.md")
    assert len(lines) == 7
    told = {}
    for line in lines:
        run = subprocess.run(
            [sys.executable, "-m", *shlex.split(line)],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            check=False,
        )
        assert run.returncode == 0, run.stderr
        told[shlex.split(line)[1]] = run.stdout
    predictions = pd.read_csv(tmp_path / "predictions.csv")
    assert list(predictions.columns) == ["row", "mean", "std", "lower_95", "upper_95"]
    assert (predictions["row"] == table["row"][200:].to_numpy()).all()
    assert json.loads(told["evaluate"])["nll"] < 0.2
    assert (tmp_path / "report.html").exists()


# Links ----------------------------------------------------------------------------------------------------------------


def anchors(document: str) -> set[str]:
    """What a link may name in a document: its headings, in GitHub's spelling."""
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in HEADING.findall(read(document)))
    return {words.strip().replace(" ", "-") for words in plain}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_somewhere(document: str) -> None:
    missing = []
    for link in LINK.findall(read(document)):
        target, _, anchor = link.partition("#")
        if "://" in target or MADE & set(Path(target).parts):
            continue
        place = ((ROOT / document).parent / target).resolve() if target else ROOT / document
        there = place.exists() and place.is_relative_to(ROOT)
        if there and anchor:
            there = anchor in anchors(str(place.relative_to(ROOT)))
        if not there:
            missing.append(link)
    assert missing == []


@pytest.mark.parametrize("document", [document for document in DOCUMENTS if document != "CHANGELOG.md"])
def test_files_that_are_named_exist(document: str) -> None:
    """A name that ends in .py is that of a file from here, or below the package, the tests or the benchmarks."""
    named = {name for name in IN_BACKTICKS.findall(read(document)) if re.fullmatch(r"[\w/]+\.py", name)}
    places = [ROOT, ROOT / "src" / "deepbasis", ROOT / "tests", ROOT / "benchmarks"]
    assert [name for name in sorted(named) if not any((place / name).is_file() for place in places)] == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_examples_that_are_linked_exist(document: str) -> None:
    named = re.findall(r"gallery/(plot_\w+)", read(document))
    assert [name for name in named if not (ROOT / "examples" / f"{name}.py").is_file()] == []


def test_every_page_is_in_a_table_of_contents() -> None:
    """`make docs` says the same; this is quicker."""
    listed = set()
    for page in [*PAGES, "docs/api/index.rst"]:
        for entries in re.findall(r"toctree[}:].*?\n\n(.*?)(?:```|\Z)", read(page), re.DOTALL):
            listed |= {((ROOT / page).parent / entry).resolve() for entry in entries.split()}
    assert {page for page in PAGES if (ROOT / page).with_suffix("") not in listed} == {"docs/index.md"}


def test_the_readme_is_read_in_five_minutes() -> None:
    assert read("README.md").count("\n") <= 100


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


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # GPyTorch uses what is deprecated in torch
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
