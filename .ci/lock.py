"""Write .ci/requirements.lock: every package that `.[dev]` installs, pinned, with the hash of its file.

`make lock` runs it after a change of the dependencies. pip resolves them under constraints.txt, as `make` does, and
reports the files that it would install; nothing is installed. A hash belongs to a file, so the lock is for one kind of
machine, that of continuous integration: this Python, this system, and the build of torch that is offered here.
"""

import json
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
HEADER = """\
# Written by `make lock`; do not edit. For continuous integration (`make LOCKED=1 ...`):
# {machine}, torch {torch}. Elsewhere `make` uses constraints.txt.
"""


def report() -> list[dict]:
    """What pip would install into an empty environment."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "report.json"
        pip = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--dry-run",
            "--ignore-installed",
            "--report",
            str(file),
        ]
        subprocess.run([*pip, "--constraint", "constraints.txt", ".[dev]"], cwd=ROOT, check=True)
        return json.loads(file.read_text())["install"]


def main() -> None:
    versions, lines = {}, []
    for package in report():
        name = package["metadata"]["name"].lower().replace("_", "-")
        versions[name] = package["metadata"]["version"]
        if name != "deepbasis":
            public = versions[name].partition("+")[0]  # a local version, such as +cpu, is that of one index
            digest = package["download_info"]["archive_info"]["hashes"]["sha256"]
            lines.append(f"{name}=={public} --hash=sha256:{digest}\n")
    machine = f"Python {sys.version_info.major}.{sys.version_info.minor}, {platform.system()} {platform.machine()}"
    header = HEADER.format(machine=machine, torch=versions["torch"])
    (ROOT / ".ci" / "requirements.lock").write_text(header + "".join(sorted(lines)))


if __name__ == "__main__":
    main()
