"""Runs the tests marked `compiled`; `conftest.py` says why they have a process of their own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_compiled_code_in_a_process_without_shape_checks():
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", str(Path(__file__).parent)]
    run = subprocess.run(
        command, env={**os.environ, "DEEPBASIS_CHECK_SHAPES": "0"}, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout[-5000:] + run.stderr[-2000:]
    assert " passed" in run.stdout
