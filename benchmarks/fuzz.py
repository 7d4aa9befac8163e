"""Forged files and killed processes, in full: the tests of tests/fuzz, with a record of what they saw.

    python benchmarks/fuzz.py                 # 10,000 of each kind of file, 100 kills of each work -> results/fuzz
    python benchmarks/fuzz.py tables killed   # some of them, again
    python benchmarks/fuzz.py --quick         # as in `make test-all`: hundreds; nothing is written

A case is refused (an error of ours, and for a table one that names the file) or right: finite predictions with their
bounds in order, a run that ends as a run does, a table that is the same in blocks and at once, a file that is whole.
Anything else fails its test, and is a case of the last column. No case is left out: seeds are numbered from 0.
"""

from __future__ import annotations

import argparse
import csv
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

from _machine import describe, one_line

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results" / "fuzz"
KINDS = {
    "model_files": "Model files with the right checksum",
    "checkpoints": "Checkpoints with the right checksum",
    "tables": "Tables",
    "killed": "SIGKILLs",
}
COUNTS = ("tried", "refused", "right", "anything_else")
COLUMNS = ("kind", "case", *COUNTS, "revision")

Row = dict[str, str]


def run(kind: str, full: bool) -> list[Row]:
    """A row for each test of a file."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
    environment.pop("DEEPBASIS_FULL_FUZZ", None)
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        words = ["-m", "pytest", f"tests/fuzz/test_{kind}.py", "-m", "", "-q"]
        words += ["-o", "junit_family=xunit1", f"--junitxml={report}"]
        full_fuzz = {"DEEPBASIS_FULL_FUZZ": "1"} if full else {}
        done = subprocess.run([sys.executable, *words], cwd=ROOT, env={**environment, **full_fuzz}, check=False)
        if done.returncode not in (0, 1):
            sys.exit(f"pytest could not run tests/fuzz/test_{kind}.py")
        return [row(kind, test) for test in ElementTree.parse(report).iter("testcase")]


def row(kind: str, test: ElementTree.Element) -> Row:
    seen = {one.attrib["name"]: int(one.attrib["value"]) for one in test.iter("property")}
    failed = test.find("failure") is not None or test.find("error") is not None
    name = test.attrib["name"]
    case = name.partition("[")[2].removesuffix("]") or name.removeprefix("test_").replace("_", " ")
    counts = {"refused": seen.get("refused", 0), "right": seen.get("right", 0), "anything_else": int(failed)}
    texts = {name: str(count) for name, count in {"tried": sum(counts.values()), **counts}.items()}
    return {"kind": kind, "case": case, **texts}


def write(rows: list[Row]) -> None:
    """In place of the rows of the same kinds."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    machine = describe()
    rows = [{**one, "revision": machine["revision"] or ""} for one in rows]
    table, kinds = RESULTS / "table.csv", {one["kind"] for one in rows}
    if table.exists():
        with open(table, newline="", encoding="utf-8") as file:
            rows = [one for one in csv.DictReader(file) if one["kind"] not in kinds] + rows
    rows.sort(key=lambda one: list(KINDS).index(one["kind"]))  # stable: the order of the tests stays
    with open(table, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    head = "| | tried | refused with a typed error | right | anything else |\n| --- | --- | --- | --- | --- |\n"
    lines = [line(title, [one for one in rows if one["kind"] == kind]) for kind, title in KINDS.items()]
    cases = [line(one["case"], [one]) for one in rows]
    (RESULTS / "table.md").write_text(
        f"# Forged files and killed processes\n\n{head}{''.join(lines)}\n"
        "Each of the tests, in the same order. `tests/fuzz` says what is right; every second gzipped table is changed\n"
        "inside, and its checksum made right again. table.csv has the revision that each was run with.\n\n"
        f"{head}{''.join(cases)}\n`python benchmarks/fuzz.py`; {machine['date'][:10]}; {one_line(machine)}\n"
    )


def line(title: str, rows: list[Row]) -> str:
    return f"| {title} | {' | '.join(f'{sum(int(one[name]) for one in rows):,}' for name in COUNTS)} |\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", metavar="kind", help=f"of {', '.join(KINDS)}; all of them by default")
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    unknown = set(given.kinds) - KINDS.keys()
    if unknown:
        parser.error(f"there is no {', '.join(sorted(unknown))}: take some of {', '.join(KINDS)}")
    failed = 0
    for kind in given.kinds or KINDS:
        rows = run(kind, full=not given.quick)
        failed += sum(int(one["anything_else"]) for one in rows)
        print(line(KINDS[kind], rows), end="", flush=True)
        if not given.quick:
            write(rows)
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
