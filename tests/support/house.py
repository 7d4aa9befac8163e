"""What the source says about itself, without importing it: who imports whom, classes, private names, lengths.

A module is named without the package: `gp/model.py` is "gp.model", `gp/__init__.py` is "gp", the package itself "".
"""

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path

OF_NAMED_TUPLES = {"_replace", "_asdict", "_fields", "_make"}
"""Public, whatever their names begin with."""


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in OF_NAMED_TUPLES


@dataclass(frozen=True)
class Import:
    """`local` is bound to `dotted`, a full name such as "deepbasis.gp.model.Terms"."""

    line: int
    local: str
    dotted: str


@dataclass(frozen=True)
class Parameter:
    line: int
    function: str
    name: str
    annotation: str
    """As it is written; empty if there is none."""


class Source:
    """One file."""

    def __init__(self, path: Path, package: Path) -> None:
        parts = path.relative_to(package).with_suffix("").parts
        self.is_package = parts[-1] == "__init__"
        self.name = ".".join(parts[:-1] if self.is_package else parts)
        self.text = path.read_text(encoding="utf-8")
        self.tree = ast.parse(self.text)

    @property
    def lines(self) -> int:
        return self.text.count("\n")

    @cached_property
    def imports(self) -> list[Import]:
        """All of them: in functions and under TYPE_CHECKING too."""
        return [found for node in ast.walk(self.tree) for found in self._imported(node)]

    def _imported(self, node: ast.AST) -> Iterator[Import]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(node.lineno, alias.asname or alias.name.partition(".")[0], alias.name)
        elif isinstance(node, ast.ImportFrom):
            here = ["deepbasis", *(self.name.split(".") if self.name else [])]
            origin = here[: len(here) - node.level + self.is_package] if node.level else []
            base = ".".join([*origin, *([node.module] if node.module else [])])
            for alias in node.names:
                yield Import(node.lineno, alias.asname or alias.name, f"{base}.{alias.name}")

    @cached_property
    def classes(self) -> list[ast.ClassDef]:
        return [node for node in ast.walk(self.tree) if isinstance(node, ast.ClassDef)]

    @cached_property
    def parameters(self) -> list[Parameter]:
        functions = [node for node in ast.walk(self.tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        return [
            Parameter(node.lineno, node.name, given.arg, ast.unparse(given.annotation) if given.annotation else "")
            for node in functions
            for given in [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        ]

    @cached_property
    def own_private_names(self) -> set[str]:
        """Private names that this file gives to something: functions, methods, variables, attributes of `self`."""
        names = set()
        for node in ast.walk(self.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                names.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.add(node.id)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_own(node.value):
                names.add(node.attr)
        return {name for name in names if is_private(name)}

    @cached_property
    def private_names_used(self) -> list[tuple[int, str, str]]:
        """Of every `something._name` and `getattr(something, "_name")`: line, something, _name."""
        used = []
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Attribute) and is_private(node.attr):
                used.append((node.lineno, ast.unparse(node.value), node.attr))
            elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "setattr", "hasattr"):
                name = node.args[1] if len(node.args) > 1 else None
                if isinstance(name, ast.Constant) and isinstance(name.value, str) and is_private(name.value):
                    used.append((node.lineno, ast.unparse(node.args[0]), name.value))
        return used


def is_own(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


class House:
    """All files of the package in a folder."""

    def __init__(self, package: Path) -> None:
        self.package = package
        found = [Source(path, package) for path in sorted(package.rglob("*.py"))]
        self.sources = {source.name: source for source in found}

    @cached_property
    def public_homes(self) -> dict[str, str]:
        """Where the names that `deepbasis/__init__.py` offers are defined."""
        of_package = [one for one in self.sources[""].imports if one.dotted.startswith("deepbasis.")]
        return {one.local: one.dotted.removeprefix("deepbasis.").rpartition(".")[0] for one in of_package}

    def home(self, dotted: str) -> str | None:
        """The module that `deepbasis.a.b.name` leads to; None outside the package."""
        if dotted.partition(".")[0] != "deepbasis":
            return None
        name = dotted.removeprefix("deepbasis").removeprefix(".")
        if name in self.public_homes:
            return self.public_homes[name]
        while name and name not in self.sources:
            name = name.rpartition(".")[0]
        return name

    @cached_property
    def imported(self) -> dict[str, set[str]]:
        """Module -> the modules that it imports. The package's own `__init__` offers everything, and is left out."""
        return {
            name: {home for one in source.imports if (home := self.home(one.dotted))} - {name}
            for name, source in self.sources.items()
            if name
        }

    def cycles(self) -> list[str]:
        """One cycle of imports, if there is any: "a -> b -> a"."""
        done: set[str] = set()

        def walk(module: str, way: list[str]) -> str | None:
            if module in way:
                return " -> ".join([*way[way.index(module) :], module])
            if module in done:
                return None
            found = next(
                (cycle for other in sorted(self.imported[module]) if (cycle := walk(other, [*way, module]))), None
            )
            done.add(module)
            return found

        return [cycle for module in self.imported if (cycle := walk(module, []))][:1]

    def longest_chain(self) -> list[str]:
        """The longest way from a file along its imports: each imports the next."""
        longest: dict[str, list[str]] = {}

        def chain(module: str) -> list[str]:
            if module not in longest:
                longest[module] = [module]  # an end, should there be a cycle
                below = [chain(other) for other in sorted(self.imported[module])]
                longest[module] = [module, *max(below, key=len, default=[])]
            return longest[module]

        return max((chain(module) for module in self.imported), key=len, default=[])

    def trespasses(self, rooms: Sequence[Sequence[str]]) -> list[str]:
        """Imports from a room that is not above."""

        def place(module: str) -> int:
            return next((k for k, room in enumerate(rooms) if module in room or module.partition(".")[0] in room), -1)

        wrong = [f"{module} has no room" for module in self.imported if place(module) < 0]
        for module, others in self.imported.items():
            wrong += [f"{module} imports {other}" for other in sorted(others) if place(other) > place(module)]
        return wrong

    def borrowed_private_names(self) -> list[str]:
        """Uses of private names that another file of the package has given."""
        owners: dict[str, set[str]] = {}
        for module, source in self.sources.items():
            for name in source.own_private_names:
                owners.setdefault(name, set()).add(module)
        wrong = []
        for module, source in self.sources.items():
            for one in source.imports:
                home, name = one.dotted.rpartition(".")[::2]
                of_this_folder = self._is_module(one.dotted) and home == f"deepbasis.{module}".rpartition(".")[0]
                if self.home(one.dotted) is not None and is_private(name) and not of_this_folder:
                    wrong.append(f"{module}:{one.line} imports {one.dotted}")
            modules = {one.local for one in source.imports if self._is_module(one.dotted)}
            for line, what, name in source.private_names_used:
                elsewhere = name in owners and module not in owners[name]
                if elsewhere or what.partition(".")[0] in modules:
                    wrong.append(f"{module}:{line} uses {what}.{name}")
        return wrong

    def _is_module(self, dotted: str) -> bool:
        return dotted.removeprefix("deepbasis.") in self.sources and dotted.startswith("deepbasis.")

    def untyped_estimators(self, names: Sequence[str]) -> list[str]:
        """Parameters of these names whose annotation says nothing."""
        return [
            f"{module}:{given.line} {given.function}({given.name}: {given.annotation or '?'})"
            for module, source in self.sources.items()
            for given in source.parameters
            if given.name in names and given.annotation in ("", "Any", "object", "Any | None")
        ]

    def classes_of_one_name(self) -> list[str]:
        homes: dict[str, list[str]] = {}
        for module, source in self.sources.items():
            for node in source.classes:
                homes.setdefault(node.name, []).append(module)
        return [f"{name}: {', '.join(where)}" for name, where in sorted(homes.items()) if len(where) > 1]

    def class_depths(self) -> dict[str, int]:
        """ "module.Class" -> 1 for one that inherits nothing of this package, 2 for its heirs, ..."""
        bases: dict[str, list[str]] = {}
        for module, source in self.sources.items():
            local = {one.local: one.dotted for one in source.imports}
            for node in source.classes:
                given = [ast.unparse(base).partition("[")[0] for base in node.bases]
                names = [local.get(name.partition(".")[0], f"deepbasis.{module}.{name}") for name in given]
                full = [
                    name if "." not in base else f"{name}.{base.partition('.')[2]}"
                    for name, base in zip(names, given, strict=True)
                ]
                bases[f"{module}.{node.name}"] = [
                    f"{home}.{name.rpartition('.')[2]}" for name in full if (home := self.home(name)) is not None
                ]

        def depth(name: str) -> int:
            return 1 + max((depth(base) for base in bases[name] if base in bases and base != name), default=0)

        return {name: depth(name) for name in bases}

    def lengths(self) -> dict[str, int]:
        return {name or "__init__": source.lines for name, source in self.sources.items()}


def patches(test: Path) -> list[str]:
    """Where a test replaces something inside of this package, as `monkeypatch.setattr(one_of_our_modules, ...)` does.

    What the system gives (`os`, `sys`, `torch`) may be replaced: a full disk, a terminal, a GPU that is not there.
    """
    source = Source(test, test.parent)
    ours = {one.local for one in source.imports if one.dotted.partition(".")[0] == "deepbasis"}
    found = []
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("patch.setattr", "patch.setitem")):
            place = ast.unparse(node.args[0])
            if place.partition(".")[0] in ours or place.strip("'").startswith("deepbasis."):
                found.append(f"{test.name}:{node.lineno} {ast.unparse(node.args[0])}")
    return found


def is_chain(house: House, chain: Sequence[str]) -> bool:
    return all(second in house.imported[first] for first, second in pairwise(chain))
