"""The order of the house: a file imports only from rooms above it (docs: "Floors and rooms")."""

import ast
import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import deepbasis

PACKAGE = Path(deepbasis.__file__).parent

ROOMS = [
    "errors",
    "storage",
    "gp.precision",
    "gp.embedding",
    "gp.backbone",
    "gp.expansion",
    "gp.posterior",
    "gp.model",
    "gp.exact",
    "gp.objectives",
    "gp.predictive",
    "gp.metrics",
    "gp.calibration",
    "gp.methods",
    "gp",
    "tables.columns",
    "tables.reading",
    "tables.encoders",
    "tables.targets",
    "tables.preprocessing",
    "tables.resident",
    "tables.naming",
    "tables.predicted",
    "tables.csv_text",
    "tables.files",
    "tables.places",
    "tables.csv_blocks",
    "tables.parquet_groups",
    "tables.arrow",
    "tables.sources",
    "tables.sketch",
    "tables.held_out",
    "tables.summaries",
    "tables.statistics",
    "tables.scanning",
    "tables.shuffling",
    "tables.counting",
    "tables",
    "engine.devices",
    "engine.settings",
    "engine.distributed",
    "engine.shuffling",
    "engine.batches",
    "engine.members",
    "engine.memory",
    "engine.compilation",
    "engine.capture",
    "engine.optimiser",
    "engine.averaging",
    "engine.checkpoint",
    "engine.outcomes",
    "engine.interrupts",
    "engine.progress",
    "engine.wave",
    "engine.training",
    "engine",
    "recipes",
    "arguments",
    "starting",
    "planning",
    "validating",
    "choosing",
    "budget",
    "streaming",
    "persistence",
    "prediction_files",
    "predictions",
    "estimator",
    "plots",
    "interop.*",
    "datasets.*",
    "experiments.*",
    "commands.*",
    "cli",
    "__main__",
]
"""From the basement to the door. `gp` is `gp/__init__.py`, after what it may gather; `interop.*` is a folder as one
room, whose files may import each other. A new file needs a place here."""


def name_of(path: Path, package: Path) -> str:
    """gp/model.py -> "gp.model", gp/__init__.py -> "gp", __init__.py -> ""."""
    parts = path.relative_to(package).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def modules(package: Path) -> dict[str, Path]:
    return {name_of(path, package): path for path in sorted(package.rglob("*.py"))}


def place(module: str) -> int | None:
    folder = f"{module.partition('.')[0]}.*"
    return next((i for i, room in enumerate(ROOMS) if room in (module, folder)), None)


def imports(tree: ast.Module, module: str, is_package: bool) -> Iterator[str]:
    """Every dotted name that the file imports, in functions and under TYPE_CHECKING too: `a.b.name` for a `from`."""
    here = ["deepbasis", *(module.split(".") if module else [])]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            origin = here[: len(here) - node.level + is_package] if node.level else []
            base = ".".join([*origin, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


def home(dotted: str, known: set[str]) -> str:
    """The module of this package that `deepbasis.a.b.name` leads to; a public name leads to where it is defined."""
    name = dotted.removeprefix("deepbasis").removeprefix(".")
    if name in deepbasis._HOMES:
        return deepbasis._HOMES[name]
    while name and name not in known:
        name = name.rpartition(".")[0]
    return name


def may_import(module: str, other: str) -> bool:
    if not other:  # the package itself, for its version
        return True
    mine, theirs = place(module), place(other)
    if mine is None or theirs is None:
        return False
    return theirs < mine or (theirs == mine and ROOMS[mine].endswith(".*"))


def trespasses(package: Path) -> list[str]:
    found = modules(package)
    wrong = []
    for module, path in found.items():
        if not module:  # the package's own __init__ names everything and imports it when asked
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for dotted in imports(tree, module, path.name == "__init__.py"):
            if dotted.split(".")[0] != "deepbasis":
                continue
            other = home(dotted, set(found))
            if not may_import(module, other):
                wrong.append(f"{module} imports {dotted}")
    return wrong


def test_every_file_has_a_room():
    assert [module for module in modules(PACKAGE) if module and place(module) is None] == []


def test_files_import_only_from_rooms_above_them():
    assert trespasses(PACKAGE) == []


@pytest.mark.parametrize(
    ("file", "line", "is_wrong"),
    [
        ("errors.py", "from deepbasis.storage import save", True),
        ("errors.py", "import deepbasis.storage", True),
        ("errors.py", "from deepbasis import storage", True),
        ("errors.py", "from . import storage", True),
        ("errors.py", "def f():\n    from deepbasis import DeepBasisGP", True),
        ("storage.py", "from .errors import FileFormatError", False),
        ("storage.py", "from deepbasis import InputError, __version__", False),
        ("gp/model.py", "from .exact import solve", True),
        ("gp/model.py", "from . import methods", True),
        ("gp/model.py", "from ..errors import InputError", False),
        ("gp/model.py", "from deepbasis.gp import posterior", False),
        ("gp/methods.py", "from deepbasis.gp import model, metrics", False),
        ("gp/__init__.py", "from .methods import build", False),
        ("gp/__init__.py", "from deepbasis.engine import training", True),
        ("engine/training.py", "from deepbasis.gp.methods import build", False),
        ("engine/training.py", "from deepbasis.estimator import DeepBasisRegressor", True),
        ("datasets/uci.py", "from deepbasis.datasets.step1d import load", False),
        ("datasets/uci.py", "from deepbasis.experiments.uci import main", True),
        ("cli.py", "from deepbasis.experiments import uci", False),
    ],
)
def test_the_check_itself(tmp_path, file, line, is_wrong):
    """On a package with the rooms above, empty but for one line."""
    for name in [room.removesuffix(".*") for room in ROOMS]:
        folder = name in ("gp", "tables", "engine", "interop", "datasets", "experiments")
        path = tmp_path / (f"{name}/__init__.py" if folder else name.replace(".", "/") + ".py")
        path.parent.mkdir(exist_ok=True)
        path.touch()
    for name in ("step1d", "uci"):
        (tmp_path / f"datasets/{name}.py").touch()
        (tmp_path / f"experiments/{name}.py").touch()
    (tmp_path / file).write_text(line)
    assert bool(trespasses(tmp_path)) == is_wrong


@pytest.mark.parametrize("library", ["sklearn", "pandas", "matplotlib", "rich"])
def test_the_method_knows_tensors_only(library):
    offenders = [
        module
        for module, path in modules(PACKAGE).items()
        if module.split(".")[0] == "gp"
        for dotted in imports(ast.parse(path.read_text(encoding="utf-8")), module, path.name == "__init__.py")
        if dotted.split(".")[0] == library
    ]
    assert offenders == []


def run_python(code: str) -> str:
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_importing_the_package_imports_nothing_heavy():
    code = "import sys, deepbasis; print(*{name.split('.')[0] for name in sys.modules})"
    heavy = {"torch", "numpy", "sklearn", "pandas", "matplotlib", "rich", "safetensors", "jaxtyping"}
    assert heavy & set(run_python(code).split()) == set()


def test_every_public_name_resolves_to_where_it_says():
    for name in deepbasis.__all__:
        value = getattr(deepbasis, name)
        if name in deepbasis._HOMES:
            assert importlib.util.find_spec(f"deepbasis.{deepbasis._HOMES[name]}") is not None
            assert getattr(sys.modules[f"deepbasis.{deepbasis._HOMES[name]}"], name) is value
    assert set(deepbasis.__all__) <= set(dir(deepbasis))


def test_the_type_checker_sees_the_same_public_names():
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    under_type_checking = next(
        node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    )
    seen = {
        alias.name: node.module.removeprefix("deepbasis.")
        for node in under_type_checking.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen == deepbasis._HOMES


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = deepbasis.nonsense
