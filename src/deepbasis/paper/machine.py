"""What every recorded figure needs beside it: the machine, the versions, the revision, the command and the date."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import deepbasis


def describe(device: str | torch.device = "cpu") -> dict[str, Any]:
    """Facts about this run, ready for JSON. No absolute path and no host name is among them."""
    device = torch.device(device)
    facts: dict[str, Any] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command(),
        "revision": _revision(),
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gib": _memory_gib(),
        "system": platform.system(),
        "load_average_1min": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "torch_threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "gpytorch": _version("gpytorch"),
        "deepbasis": deepbasis.__version__,
        "device": device.type,
    }
    if device.type == "cuda":
        facts["gpu"] = torch.cuda.get_device_name(device)
        facts["cuda"] = torch.version.cuda
    return facts


def one_line(facts: dict[str, Any]) -> str:
    """The same for a table's caption."""
    where = facts.get("gpu") or f"{facts['cpu']}, {facts['cores']} cores, {facts['torch_threads']} torch threads"
    return f"{where}; torch {facts['torch']}, Python {facts['python']}; load {facts['load_average_1min']}"


def command() -> str:
    """The command line of this process, without the folders of its absolute paths."""
    program = Path(sys.argv[0])
    arguments = [Path(word).name if os.path.isabs(word) else word for word in sys.argv[1:]]
    if program.parent.name == "benchmarks":
        return " ".join(["python", f"benchmarks/{program.name}", *arguments])
    name = "deepbasis" if program.name == "__main__.py" else program.name
    return " ".join([name, *arguments])


def _revision() -> str | None:
    """Of the checkout that this package runs from; none where it is installed."""
    root = Path(deepbasis.__file__).parents[2]
    if not (root / ".git").exists():
        return None
    words = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        run = subprocess.run(words, cwd=root, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return run.stdout.strip() or None


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _memory_gib() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (AttributeError, OSError, ValueError):
        return None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
