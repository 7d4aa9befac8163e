"""Workers as processes: how they meet, how they leave, and what becomes of a run when one of them is killed."""

import math
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed")

LISTENING = """
import os
from pathlib import Path
from deepbasis.engine import distributed

team = distributed.start("cpu")
mine = {os.readlink(file) for file in Path("/proc/self/fd").iterdir() if file.is_symlink()}
lines = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/self/net/{name}").read_text().splitlines()]
found = {line[1].partition(":")[0] for line in lines if line[3] == "0A" and f"socket:[{line[9]}]" in mine}
for each in team.gather_objects([*found, os.environ["GLOO_SOCKET_IFNAME"]]):
    print(*each) if team.first else None
distributed.stop()
"""

THREADS = """
import os
from pathlib import Path
import torch
from deepbasis.engine import distributed

def of_gloo():
    return sum("gloo" in (task / "comm").read_text() for task in Path("/proc/self/task").iterdir())

team = distributed.start("cpu")
asked = team.now_and_then(lambda: False)
team.sum_(torch.ones(3)), asked(), team.broadcast_object("word")
before = of_gloo()
distributed.stop()
assert (before > 0, of_gloo()) == (True, 0), (before, of_gloo())
"""


def torchrun(*arguments: str, seconds: float = 120.0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=seconds, check=False)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks into /proc")
def test_a_team_that_was_left_has_no_threads(tmp_path):
    """Though `team` and what it made live on: such a thread would abort the process at its end, now and then."""
    script = tmp_path / "threads.py"
    script.write_text(THREADS)
    run = torchrun("--standalone", str(script))
    assert run.returncode == 0, run.stderr


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/net/tcp").exists(), reason="looks into /proc")
def test_workers_of_one_machine_listen_on_its_loopback_alone(tmp_path):
    """Started by hand: the first of them keeps the store, which torch would open to everybody."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = {**os.environ, "MASTER_ADDR": "localhost", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    both = [
        subprocess.Popen(
            [sys.executable, "-c", LISTENING], env={**environment, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    said = [process.communicate(timeout=60)[0] for process in both]
    assert said == ["0100007F lo\n" * 2, ""]


@pytest.mark.slow
def test_a_killed_worker_is_started_again_and_the_run_ends_as_it_should(tmp_path):
    """One of two workers kills itself in the fifth epoch; torchrun starts both again, and they go on from the file."""
    script = Path(__file__).with_name("killed_worker.py")
    begun = time.monotonic()
    run = torchrun("--standalone", "--max-restarts", "1", str(script), str(tmp_path))
    assert run.returncode == 0, f"{run.stdout}\n{run.stderr}\nafter {time.monotonic() - begun:.0f} s"
    lives = (tmp_path / "lives").read_text().split()
    assert lives == ["from", "epoch", "1", "killed", "from", "epoch", "5"]
    assert math.isclose(float((tmp_path / "difference").read_text()), 0.0, abs_tol=1e-6)
