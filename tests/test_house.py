"""The rules of the house (CONTRIBUTING.md), read from the source: rooms, private names, sizes."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import deepbasis
from mutations import MUTATIONS
from support.house import House, is_chain, patches

PACKAGE = Path(deepbasis.__file__).parent
TESTS = Path(__file__).parent
HOUSE = House(PACKAGE)

ROOMS = [
    ["errors", "hashing", "registry", "progress", "storage", "plots"],
    ["gp"],
    ["tables"],
    ["engine"],
    ["fitting"],
    ["faces", "estimators", "classifier"],
    ["scoring", "explain", "class_effects", "report"],
    ["interop"],
    ["paper"],
    ["cli"],
    ["__main__"],
]
"""From the foundations to the door: files and folders. A file imports from its own room and from those above it."""

LONGEST_FILE, LONGEST_TEST, LONGEST_CHAIN, DEEPEST_CLASS = 350, 700, 16, 2
MOST_RESULTS, MOST_BYTES = 80, 15 * 2**20


# ---- the rules -------------------------------------------------------------------------------------------------------


def test_a_room_imports_only_from_those_above_it() -> None:
    assert HOUSE.trespasses(ROOMS) == []


def test_no_files_import_each_other_in_a_circle() -> None:
    assert HOUSE.cycles() == []


def test_no_file_uses_the_private_names_of_another() -> None:
    assert HOUSE.borrowed_private_names() == []


def test_nothing_takes_an_estimator_as_anything() -> None:
    assert HOUSE.untyped_estimators(["regressor", "estimator", "given", "model", "fitted", "spec", "plan"]) == []


def test_no_two_classes_have_one_name() -> None:
    assert HOUSE.classes_of_one_name() == []


@pytest.mark.parametrize("one", MUTATIONS, ids=lambda one: one.name)
def test_every_mutation_has_its_place_in_the_code(one) -> None:
    """The list of `tests/mutations.py` follows the code."""
    assert (PACKAGE / one.file).read_text(encoding="utf-8").count(one.old) == 1
    assert all((TESTS / test).is_file() for test in one.tests)


def test_classes_inherit_once_at_most() -> None:
    assert {name: depth for name, depth in HOUSE.class_depths().items() if depth > DEEPEST_CLASS} == {}


def test_a_file_is_read_in_one_sitting() -> None:
    assert {name: lines for name, lines in HOUSE.lengths().items() if lines > LONGEST_FILE} == {}


def test_a_test_file_is_read_in_one_sitting() -> None:
    lengths = {path.name: path.read_text(encoding="utf-8").count("\n") for path in TESTS.rglob("*.py")}
    assert {name: lines for name, lines in lengths.items() if lines > LONGEST_TEST} == {}


def test_tests_replace_nothing_inside_of_the_package() -> None:
    assert [one for path in sorted(TESTS.rglob("test_*.py")) for one in patches(path)] == []


def test_chains_of_imports_are_short() -> None:
    assert len(HOUSE.longest_chain()) <= LONGEST_CHAIN, " > ".join(HOUSE.longest_chain())


def test_recorded_results_stay_small() -> None:
    files = [path for path in (TESTS.parent / "results").rglob("*") if path.is_file()]
    assert len(files) <= MOST_RESULTS
    assert sum(path.stat().st_size for path in files) < MOST_BYTES


@pytest.mark.parametrize("library", ["sklearn", "pandas", "matplotlib", "rich"])
def test_the_method_knows_tensors_only(library: str) -> None:
    offenders = [
        f"{module}:{one.line}"
        for module, source in HOUSE.sources.items()
        for one in source.imports
        if module.partition(".")[0] == "gp" and one.dotted.partition(".")[0] == library
    ]
    assert offenders == []


# ---- the checks themselves, on small packages ------------------------------------------------------------------------


def house_of(folder: Path, files: dict[str, str]) -> House:
    for name, text in {"__init__.py": "", **files}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return House(folder)


SOME_ROOMS = [["errors", "storage"], ["gp"], ["engine"], ["cli"]]


@pytest.mark.parametrize(
    ("file", "line", "is_wrong"),
    [
        ("errors.py", "from deepbasis.storage import save", False),  # of the same room
        ("errors.py", "from deepbasis.gp.model import Model", True),
        ("errors.py", "import deepbasis.gp.model", True),
        ("errors.py", "from deepbasis import gp", True),
        ("errors.py", "from . import gp", True),
        ("errors.py", "def f():\n    from deepbasis import Model", True),
        ("errors.py", "if TYPE_CHECKING:\n    from .gp.model import Model", True),
        ("gp/model.py", "from .exact import solve", False),
        ("gp/model.py", "from ..errors import InputError", False),
        ("gp/model.py", "from ..engine import training", True),
        ("gp/__init__.py", "from deepbasis.engine.training import train", True),
        ("engine/training.py", "from deepbasis import Model, gp", False),
        ("engine/training.py", "from deepbasis.cli import app", True),
        ("lost.py", "", True),  # has no room
    ],
)
def test_rooms(tmp_path: Path, file: str, line: str, is_wrong: bool) -> None:
    empty = ["storage.py", "gp/exact.py", "gp/__init__.py", "engine/__init__.py", "engine/training.py", "cli.py"]
    files = {**dict.fromkeys(empty, ""), "errors.py": "", "gp/model.py": "class Model: ...\n"}
    house = house_of(tmp_path, {**files, "__init__.py": "from deepbasis.gp.model import Model", file: line})
    assert bool(house.trespasses(SOME_ROOMS)) == is_wrong


def test_circles_and_chains(tmp_path: Path) -> None:
    files = {
        "a.py": "from deepbasis import b",
        "b.py": "from deepbasis.c import x",
        "c.py": "",
        "d.py": "import deepbasis.c",
    }
    house = house_of(tmp_path, files)
    assert house.longest_chain() == ["a", "b", "c"]
    assert is_chain(house, house.longest_chain())
    assert house.cycles() == []
    (tmp_path / "c.py").write_text("def f():\n    from .a import y")
    assert House(tmp_path).cycles() == ["a -> b -> c -> a"]


@pytest.mark.parametrize(
    ("line", "is_wrong"),
    [
        ("from deepbasis.a import _helper", True),
        ("from deepbasis import a\na._helper()", True),
        ("import deepbasis.a as other\nother._anything", True),
        ("def f(thing): return thing._secret", True),
        ("def f(thing): return thing._method()", True),
        ("class B(A):\n    def f(self): return self._secret", True),
        ("def f(thing): return getattr(thing, '_secret')", True),
        ("class B:\n    def __init__(self): self._secret = 1\n    def f(self, other): return other._secret", False),
        ("def f(row): return row._replace(x=1)", False),
        ("import torch\ntorch._assert(True)", False),
        ("from deepbasis.a import A\nA().__class__", False),
    ],
)
def test_private_names(tmp_path: Path, line: str, is_wrong: bool) -> None:
    a = "def _helper(): ...\nclass A:\n    def __init__(self): self._secret = 1\n    def _method(self): ...\n"
    assert bool(house_of(tmp_path, {"a.py": a, "b.py": line}).borrowed_private_names()) == is_wrong


@pytest.mark.parametrize(
    ("line", "is_wrong"),
    [
        ("monkeypatch.setattr(training, 'train', None)", True),
        ("monkeypatch.setattr(Wave, 'end_epoch', None)", True),
        ("monkeypatch.setattr('deepbasis.gp.exact.solve', None)", True),
        ("monkeypatch.setitem(training.__dict__, 'train', None)", True),
        ("with monkeypatch.context() as patch:\n    patch.setattr(training.os, 'fsync', None)", True),
        ("monkeypatch.setattr(os, 'fsync', None)", False),
        ("monkeypatch.setitem(sys.modules, 'rich', None)", False),
        ("setattr(training, 'note', 1)", False),
    ],
)
def test_patches(tmp_path: Path, line: str, is_wrong: bool) -> None:
    head = "import os, sys\nfrom deepbasis.engine import training\nfrom deepbasis.engine.wave import Wave\n"
    (tmp_path / "test_it.py").write_text(head + line)
    assert bool(patches(tmp_path / "test_it.py")) == is_wrong


def test_classes_and_parameters(tmp_path: Path) -> None:
    files = {
        "a.py": "import torch\nclass A(torch.nn.Module): ...\nclass B(A): ...\ndef f(model: Any, x: Any): ...",
        "b.py": "from deepbasis import a\nfrom deepbasis.a import B\nclass C(B): ...\nclass D(a.A): ...\nclass A: ...",
        "c.py": "class Outer:\n    def f(self, *, model: int, fitted): ...",
    }
    house = house_of(tmp_path, files)
    depths = {"a.A": 1, "a.B": 2, "b.C": 3, "b.D": 2, "b.A": 1, "c.Outer": 1}
    assert house.class_depths() == depths
    assert house.classes_of_one_name() == ["A: a, b"]
    assert house.untyped_estimators(["model", "fitted"]) == ["a:4 f(model: Any)", "c:2 f(fitted: ?)"]


# ---- the door of the package -----------------------------------------------------------------------------------------


def run_python(code: str) -> str:
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_importing_the_package_imports_nothing_heavy() -> None:
    code = "import sys, deepbasis; print(*{name.split('.')[0] for name in sys.modules})"
    heavy = {"torch", "numpy", "sklearn", "pandas", "matplotlib", "rich", "safetensors", "jaxtyping"}
    assert heavy & set(run_python(code).split()) == set()


def test_every_public_name_is_what_the_type_checker_sees() -> None:
    homes = HOUSE.public_homes
    assert set(homes) <= set(deepbasis.__all__) <= set(dir(deepbasis))
    for name in deepbasis.__all__:
        value = getattr(deepbasis, name)
        assert name not in homes or getattr(sys.modules[f"deepbasis.{homes[name]}"], name) is value
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    under_type_checking = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {alias.name for node in under_type_checking.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    own = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert set(deepbasis.__all__) - {"__version__"} - own == seen


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = deepbasis.nonsense


def test_benchmarks_import_from_each_other_what_is_there() -> None:
    """They are run by `make smoke` alone, which takes long: what two changes broke together is seen here."""
    trees = {
        file.stem: ast.parse(file.read_text(encoding="utf-8")) for file in (TESTS.parent / "benchmarks").glob("*.py")
    }
    names = {stem: defined(tree) for stem, tree in trees.items()}
    missing = [
        f"{stem}: {one.module}.{alias.name}"
        for stem, tree in trees.items()
        for one in ast.walk(tree)
        if isinstance(one, ast.ImportFrom) and one.module in names
        for alias in one.names
        if alias.name not in names[one.module]
    ]
    assert missing == []


def defined(tree: ast.Module) -> set[str]:
    """What a module gives a name to, imports among it."""
    found: set[str] = set()
    for one in tree.body:
        if isinstance(one, ast.FunctionDef | ast.ClassDef):
            found.add(one.name)
        elif isinstance(one, ast.Assign | ast.AnnAssign):
            targets = one.targets if isinstance(one, ast.Assign) else [one.target]
            found |= {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}
        elif isinstance(one, ast.ImportFrom):
            found |= {alias.asname or alias.name for alias in one.names}
    return found
