"""Help, completion, and what is imported for them."""

import inspect
import os
import re
import resource
import subprocess
import sys

import pytest
from typer.main import get_command

from deepbasis import DeepBasisRegressor, __version__, cli
from deepbasis.fitting.recipe import TRENDS
from deepbasis.fitting.spec import EXACT
from deepbasis.gp.methods import METHODS
from deepbasis.registry import EMBEDDINGS, OBJECTIVES
from support import own
from support.command import COMMAND, good


def parameters(command: str) -> dict[str, object]:
    return {parameter.name: parameter for parameter in get_command(cli.app).commands[command].params}


def test_every_constructor_argument_is_an_option_of_fit_with_the_same_default():
    options = parameters("fit")
    for name, argument in inspect.signature(DeepBasisRegressor).parameters.items():
        if name in ("verbose", "columns"):  # shown unless --quiet; --as
            continue
        option = {"random_state": "seed", "target": "target_transform"}.get(name, name)
        assert f"--{option.replace('_', '-')}" in options[option].opts
        assert options[option].default == argument.default, name


def test_every_parameter_of_every_command_is_explained():
    for name, command in get_command(cli.app).commands.items():
        assert command.help, name
        assert [parameter.name for parameter in command.params if not parameter.help] == []
        assert f"deepbasis {name}" in re.sub(r"\[.*?\]", "", command.help)  # an example


def test_the_words_for_completion_are_the_real_ones():
    options = parameters("fit")
    words = {name: option.metavar.split("|") for name, option in options.items() if option.metavar}
    assert {"auto", *own.METHODS} <= set(words["method"]) <= {"auto", *METHODS}  # tests register some too
    assert {*own.OBJECTIVES, EXACT} <= set(words["objective"]) <= {*OBJECTIVES, EXACT}
    assert words["recipe"][:2] == ["default", "paper"]
    assert {"auto", *own.EMBEDDINGS} <= set(words["embedding"]) <= {"auto", *EMBEDDINGS}
    assert set(words["trend"]) == {"auto", *TRENDS}


def test_version():
    assert good("--version").stdout == f"deepbasis {__version__}\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["fit", "--help"],
        ["predict", "-h"],
        ["evaluate", "-h"],
        ["info", "-h"],
        ["explain", "-h"],
        ["report", "-h"],
        ["demo", "-h"],
    ],
)
def test_help_shows_examples(arguments):
    assert "deepbasis " in good(*arguments).stdout


def test_help_answers_at_once():
    """Under 0.5 s on an idle machine; here with room for a busy one. Processor time says more than the clock."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([*COMMAND, "--help"], capture_output=True, check=True, timeout=10)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1.0


@pytest.mark.parametrize("arguments", [["--help"], ["fit", "--help"], ["--version"], ["fit", "x.csv"]])
def test_nothing_heavy_is_imported_until_there_is_work(arguments):
    code = (
        "import sys, atexit\nfrom deepbasis.__main__ import main\nsys.argv = ['deepbasis', *sys.argv[1:]]\n"
        "heavy = {'torch', 'numpy', 'pandas', 'sklearn', 'pyarrow', 'matplotlib'}\n"
        "atexit.register(lambda: print('loaded:', *sorted(heavy & set(sys.modules)), file=sys.stderr))\nmain()"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1] == "loaded:"


def test_the_shell_completes_commands_and_words():
    def completed(line: str) -> str:
        words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
        environment = {**os.environ, "_DEEPBASIS_COMPLETE": "complete_bash", **words}
        return subprocess.run(COMMAND, env=environment, capture_output=True, text=True, check=False).stdout

    assert completed("deepbasis e").split() == ["evaluate", "explain", "export"]
    assert completed("deepbasis fit --method sv").split() == ["sv-dkl", "sv-rbf", "sv-rbf-linear"]
    assert "--validation-fraction" in completed("deepbasis fit --valid").split()
