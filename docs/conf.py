"""The site: `make docs` builds it into build/docs, and treats every warning as an error.

What the pages include and Git does not hold is made here first: figures of committed results (`figures.py`) and the
help of the command. The gallery runs the scripts of examples/.
"""

import re
import sys
import tomllib
import warnings
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
ROOT = DOCS.parent
sys.path.insert(0, str(DOCS))

import deepbasis  # noqa: E402
import figures  # noqa: E402  docs/figures.py

stated = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
HOME = stated.get("urls", {}).get("Repository")
"""Where the source is on the web, if pyproject.toml says so; links to files outside of docs/ lead there."""

project = stated["name"]
author = "The deepbasis developers"
copyright = author
version = release = deepbasis.__version__

extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.doctest",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["generated/*.md"]
nitpicky = False
default_role = "code"  # `name` in a docstring

html_theme = "furo"
html_title = f"deepbasis {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {"source_repository": HOME, "source_branch": "main", "source_directory": "docs/"} if HOME else {}

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4

autodoc_member_order = "bysource"
autodoc_typehints = "none"
python_maximum_signature_line_length = 100
numpydoc_show_class_members = False

sphinx_gallery_conf = {
    "examples_dirs": str(ROOT / "examples"),
    "gallery_dirs": "gallery",
    "filename_pattern": r"/plot_",
    "ignore_pattern": r"data",
    "within_subsection_order": "FileNameSortKey",
    "nested_sections": False,
    "show_memory": False,
    "show_signature": False,
    "download_all_examples": False,
    "remove_config_comments": True,
    "reset_modules": ("matplotlib",),
    "abort_on_example_error": True,
    "plot_gallery": "True",
}
# Figures are drawn without a window, which `plt.show()` remarks on.
warnings.filterwarnings("ignore", message=".*non-interactive.*")


# Links that lead out of docs/ -----------------------------------------------------------------------------------------

OUTSIDE = re.compile(r"(?<!!)\[([^\]]+)\]\(((?:\.\./)+[^)#\s]+)(#[^)\s]*)?\)")


def lead_home(app: Any, name: str, source: list[str]) -> None:
    """A link to a file of the repository goes to its page on the web, or, without one, becomes its path."""

    def replaced(link: re.Match[str]) -> str:
        place = (DOCS / f"{name}.md").parent.joinpath(link[2]).resolve()
        if place.is_relative_to(DOCS):
            return link[0]
        path = place.relative_to(ROOT).as_posix()
        if HOME:
            return f"[{link[1]}]({HOME}/blob/main/{path}{link[3] or ''})"
        return f"`{path}`" if link[1].strip("`") in path else f"{link[1]} (`{path}`)"

    source[0] = OUTSIDE.sub(replaced, source[0])


# The command's help ---------------------------------------------------------------------------------------------------


def write_help(app: Any) -> None:
    """`generated/help.md`: what `deepbasis COMMAND --help` says, as tables."""
    from typer.main import get_command

    from deepbasis.cli import app as command_line

    command: Any = get_command(command_line)
    lines = []
    for name, one in sorted(command.commands.items()):
        lines += [f"## deepbasis {name}", ""]
        for text in re.sub(r"\[/?bold\]", "", one.help or "").split("\n\n"):
            called = text.strip().startswith("deepbasis ")
            lines += ["```sh", " ".join(text.split()), "```", ""] if called else [plain(text), ""]
        lines += ["| | |", "| --- | --- |"]
        for parameter in one.params:
            words = [*parameter.opts, *parameter.secondary_opts] if parameter.param_type_name == "option" else None
            shown = ", ".join(f"`{word}`" for word in words) if words else f"`{parameter.name.upper()}`"
            lines.append(f"| {shown} | {plain(getattr(parameter, 'help', None) or '')} |")
        lines.append("")
    folder = DOCS / "generated"
    folder.mkdir(exist_ok=True)
    write(folder / "help.md", "\n".join(lines))


def plain(text: str) -> str:
    """One line, without the marks of the terminal, and with nothing that Markdown would take for a mark."""
    one = " ".join(text.replace("\b", "").split())
    return re.sub(r"([|*_<>\[\]])", r"\\\1", one)


def write(path: Path, text: str) -> None:
    if not path.exists() or path.read_text(encoding="utf-8") != text:  # unchanged files are not built again
        path.write_text(text, encoding="utf-8")


MARKS = re.compile(r"(`[^`]*`)|\||(?<=\w)_(?!\w)")


def escape_marks(app: Any, what: str, name: str, thing: object, options: object, lines: list[str]) -> None:
    """Outside of backticks |x| is an absolute value and rank_ an attribute, not the marks of reStructuredText."""
    lines[:] = [MARKS.sub(lambda mark: mark[1] or f"\\{mark[0]}", line) for line in lines]


def setup(app: Any) -> None:
    app.connect("builder-inited", lambda app: figures.draw_all(ROOT / "results", DOCS / "generated"), priority=1)
    app.connect("builder-inited", write_help, priority=1)
    app.connect("source-read", lead_home)
    app.connect("autodoc-process-docstring", escape_marks)
