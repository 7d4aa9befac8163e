"""What a benchmark records beside its figures: the machine (as the experiments do), and its own memory."""

from __future__ import annotations

import argparse
import json
import os
import resource
from pathlib import Path

from deepbasis.paper.machine import describe, one_line

__all__ = ["describe", "made", "one_line", "peak_mib", "record", "reset_peak", "resident_mib"]


def made() -> str:
    """For the foot of a page: when, from which revision and on which machine."""
    facts = describe()
    return f"{facts['date'][:10]}, revision {facts['revision']}; {one_line(facts)}"


def record(folder: Path, name: str, arguments: argparse.Namespace | None = None) -> None:
    """Into the folder's machine.json, which other tables of the folder share."""
    path = folder / "machine.json"
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    given = {} if arguments is None else vars(arguments)
    settings = {key: str(value) for key, value in given.items() if key not in ("data_dir", "out")}
    found = {**known, name: {**describe(), **({"settings": settings} if settings else {})}}
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def reset_peak() -> bool:
    """Set the kernel's high-water mark of this process back to what is resident now; false where it cannot be."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def peak_mib(was_reset: bool) -> float:
    if was_reset:
        lines = Path("/proc/self/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # the peak so far: never too small
