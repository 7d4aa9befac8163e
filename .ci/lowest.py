"""Print the lowest versions that pyproject.toml allows, as pip's constraints: `numpy>=2` is `numpy==2`.

Except that of torch: its oldest supported builds are gigabytes where no CPU build is offered, so it is the pinned one.
"""

import tomllib
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent
EXTRAS = ("progress", "tables", "cli", "plots")


def main() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    entries = [*project["dependencies"], *(one for extra in EXTRAS for one in project["optional-dependencies"][extra])]
    for needed in map(Requirement, entries):
        if needed.name not in ("deepbasis", "torch"):
            (bound,) = needed.specifier
            print(f"{needed.name}=={bound.version}")
    print(next(line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.startswith("torch==")))


if __name__ == "__main__":
    main()
