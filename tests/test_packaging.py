"""What is published: wheel and sdist are built, opened and used outside of the source tree."""

import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import deepbasis

ROOT = Path(__file__).parents[1]
PROGRAM = """
import deepbasis, torch
model = deepbasis.build("dbk-rbf", 2, rank=4, width=4, seed=0)
terms = model(torch.ones(3, 2))
print(deepbasis.__file__)
print(deepbasis.__version__)
print(bool((terms.var > 0).all()), *(f"{value:.6f}" for value in terms.mean.tolist()))
"""


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    done = subprocess.run(
        command, cwd=cwd, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel that was built from it."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT, cwd=folder)
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    return next(built.glob("*.whl"))


@pytest.fixture(scope="module")
def sdist(built: Path) -> Path:
    return next(built.glob("*.tar.gz"))


def unpack(archive: Path, folder: Path) -> Path:
    """The folder in which `import deepbasis` finds what the archive holds."""
    if archive.suffix == ".whl":
        pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
        run(*pip, "install", "--no-deps", "--no-index", "--target", folder, archive, cwd=folder)
        return folder
    with tarfile.open(archive) as file:
        file.extractall(folder, filter="data")
    return next(folder.glob("deepbasis-*")) / "src"


def readme_of(folder: Path, address: str | None) -> str:
    """What a package index would show, if the project had this home."""
    for name in ("pyproject.toml", "README.md", "LICENSE", ".ci/readme.py", "src/deepbasis/__init__.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text((ROOT / name).read_text())
    stated = (folder / "pyproject.toml").read_text()
    if address is not None:
        stated = stated.replace("# [project.urls]", "[project.urls]")
        stated = stated.replace('# Repository = "https://..."', f'Repository = "{address}"')
    (folder / "pyproject.toml").write_text(stated)
    return json.loads(run(sys.executable, "-m", "hatchling", "metadata", cwd=folder))["readme"]["text"]


def test_links_of_the_readme_lead_to_the_projects_home_once_it_has_one(tmp_path: Path) -> None:
    plain = (ROOT / "README.md").read_text()
    assert readme_of(tmp_path / "none", None) == plain
    home = "https://example.org/people/deepbasis"
    found = readme_of(tmp_path / "some", home + "/")
    targets = re.findall(r"\]\((.*?)\)", found)
    assert len(targets) == len(re.findall(r"\]\(", plain)) > 10
    for target in targets:
        kind, path = re.fullmatch(rf"{home}/(blob|raw)/HEAD/([^#]*)(?:#.*)?", target).groups()
        assert (ROOT / path).exists()
        assert kind == ("raw" if path.endswith(".png") else "blob")
    relative = re.sub(rf"\({home}/(blob|raw)/HEAD/", "(", found)
    assert relative == plain


@pytest.mark.slow
@pytest.mark.parametrize("archive", ["wheel", "sdist"])
def test_the_archive_runs_outside_of_the_source_tree(request, tmp_path, archive):
    place = unpack(request.getfixturevalue(archive), tmp_path)
    where, version, result = run(sys.executable, "-c", PROGRAM, cwd=tmp_path, PYTHONPATH=str(place)).splitlines()
    assert Path(where) == place / "deepbasis" / "__init__.py"
    assert version == deepbasis.__version__
    expected = run(sys.executable, "-c", PROGRAM, cwd=ROOT, PYTHONPATH=str(ROOT / "src")).splitlines()[-1]
    assert result == expected
    assert result.startswith("True ")


@pytest.mark.slow
def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    package = ROOT / "src" / "deepbasis"
    sources = {
        f"deepbasis/{path.relative_to(package).as_posix()}"
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {name for name in names if name.startswith("deepbasis/")} == sources
    assert "deepbasis/py.typed" in sources
    others = {name.split("/")[0] for name in names - sources}
    assert others == {f"deepbasis-{deepbasis.__version__}.dist-info"}


@pytest.mark.slow
def test_the_wheel_carries_its_licence_and_metadata(wheel):
    archive = zipfile.ZipFile(wheel)
    info = f"deepbasis-{deepbasis.__version__}.dist-info"
    assert archive.read(f"{info}/licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()
    metadata = Parser().parsestr(archive.read(f"{info}/METADATA").decode())
    assert metadata["Name"] == "deepbasis"
    assert metadata["Version"] == deepbasis.__version__
    assert metadata["License-Expression"] == "Apache-2.0"
    stated = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    assert [entry for entry in metadata.get_all("Requires-Dist") if "extra ==" not in entry] == sorted(stated)


@pytest.mark.slow
def test_the_sdist_holds_what_is_needed_to_build_and_test(sdist):
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "LICENSE", "README.md", "CHANGELOG.md", "src/deepbasis/py.typed"} <= names
    assert "tests/test_packaging.py" in names
    assert not any(part in name for name in names for part in (".venv", "__pycache__", ".git/"))


# The lock -------------------------------------------------------------------------------------------------------------


def pinned(file: str) -> dict[str, str]:
    """Name -> version, of the lines of a requirements file."""
    lines = [line for line in (ROOT / file).read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    return {
        canonicalize_name(name): version.split()[0] for name, _, version in (line.partition("==") for line in lines)
    }


def wanted(extra: str) -> set[str]:
    """The packages that an extra names, and those of the extras that it is made of."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found: set[str] = {canonicalize_name(Requirement(entry).name) for entry in project["dependencies"]}
    for entry in map(Requirement, project["optional-dependencies"][extra]):
        own = canonicalize_name(entry.name) == project["name"]
        found |= {name for part in entry.extras for name in wanted(part)} if own else {canonicalize_name(entry.name)}
    return found


def test_the_lock_is_what_constraints_and_extras_say():
    """After a change of the dependencies: `make lock`."""
    lock = pinned(".ci/requirements.lock")
    assert pinned("constraints.txt").items() <= lock.items()
    assert wanted("dev") <= set(lock)


def test_every_line_of_the_lock_has_a_hash_and_none_names_a_place():
    text = (ROOT / ".ci" / "requirements.lock").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[a-z0-9.-]+==[\w.]+ --hash=sha256:[0-9a-f]{64}", line) for line in lines)
    assert "://" not in text


# Versions -------------------------------------------------------------------------------------------------------------


def test_the_changelogs_newest_release_is_this_version():
    released = re.findall(r"^## \[?(\d[^\s\]]*)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert released[:1] in ([], [deepbasis.__version__])


def test_the_citation_is_of_this_version():
    citation = ROOT / "CITATION.cff"
    stated = (
        re.findall(r"^version:\s*[\"']?([^\s\"']+)", citation.read_text("utf-8"), re.M) if citation.exists() else []
    )
    assert stated in ([], [deepbasis.__version__])
