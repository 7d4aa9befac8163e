"""Registries: names first, values when they are used."""

import subprocess
import sys

import pytest

import deepbasis
from deepbasis.errors import InputError
from deepbasis.registry import EMBEDDINGS, EXPANSIONS, OBJECTIVES, REGISTRIES, Registry


@pytest.fixture
def colours() -> Registry[object]:
    return Registry("colour", {"red": 1, "root": "math:sqrt"})


def test_a_value_is_imported_when_it_is_used(colours):
    assert list(colours) == ["red", "root"]
    assert "root" in colours
    assert colours["red"] == 1
    assert colours["root"](4.0) == 2.0
    with pytest.raises(KeyError):
        colours["blue"]


def test_a_new_name_comes_last_and_a_taken_one_is_refused(colours):
    colours.register("blue", 3)
    assert list(colours) == ["red", "root", "blue"]
    with pytest.raises(InputError, match="there is a colour named 'red' already"):
        colours.register("red", 4)
    with pytest.raises(InputError, match="must be a text"):
        colours.register("", 4)
    assert colours["red"] == 1


def test_a_name_is_checked_as_any_choice(colours):
    assert colours.check("shade", "red") == "red"
    with pytest.raises(InputError, match="shade must be one of red, root; got 'green'"):
        colours.check("shade", "green")


def test_every_name_leads_to_a_value():
    for registry in (EXPANSIONS, OBJECTIVES):
        assert all(callable(value) for value in registry.values())
    assert EMBEDDINGS["none"] is None
    assert all(callable(make) for name, make in EMBEDDINGS.items() if name != "none")
    assert {name: registry.kind for name, registry in REGISTRIES.items()} == {name: name for name in REGISTRIES}


def test_an_unknown_kind_is_refused():
    with pytest.raises(InputError, match=r"kind must be one of .*expansion.*; got 'colour'"):
        deepbasis.register("colour", "red", 1)


def test_names_cost_no_torch():
    code = (
        "import sys; import deepbasis; from deepbasis.registry import REGISTRIES; deepbasis.register;"
        "print([list(r) for r in REGISTRIES.values()], 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("False")
    assert "sv-rbf-linear" in done.stdout
