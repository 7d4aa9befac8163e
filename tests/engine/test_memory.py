"""What a machine, or the container in it, has to give: by files as Linux writes them."""

from pathlib import Path

import pytest

from deepbasis.engine import memory
from deepbasis.engine.memory import available_on_host

MIB = 2**20


def machine(folder: Path, groups: str, files: dict[str, str], free: int = 8000) -> tuple[Path, Path]:
    """The folders /proc and /sys/fs/cgroup, with `free` MiB, the line of /proc/self/cgroup, and the groups' files."""
    proc, control = folder / "proc", folder / "cgroup"
    content = {"proc/self/cgroup": groups, "proc/meminfo": f"MemFree: 1 kB\nMemAvailable: {free * 1024} kB\n"}
    for name, text in {**content, **{f"cgroup/{name}": text for name, text in files.items()}}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return proc, control


def version_2(folder: str, limit: str, used: int, cached: int) -> dict[str, str]:
    stat = f"anon 5\nfile 77\ninactive_file {cached // 2 * MIB}\nactive_file {(cached - cached // 2) * MIB}\n"
    return {f"{folder}memory.max": limit, f"{folder}memory.current": f"{used * MIB}", f"{folder}memory.stat": stat}


def version_1(folder: str, limit: int, used: int, cached: int) -> dict[str, str]:
    stat = f"inactive_file 1\nactive_file 1\ntotal_inactive_file {cached * MIB}\ntotal_active_file 0\n"
    named = {"limit_in_bytes": f"{limit}", "usage_in_bytes": f"{used * MIB}", "stat": stat}
    return {f"memory/{folder}memory.{name}": text for name, text in named.items()}


def test_without_a_container_it_is_what_the_machine_has_free_with_its_page_cache(tmp_path):
    assert available_on_host(*machine(tmp_path, "0::/\n", {})) == 8000 * MIB


def test_a_container_leaves_its_limit_less_what_cannot_be_given_up(tmp_path):
    """The pages of files that were read count as used, and are given up when memory is wanted."""
    there = machine(tmp_path, "0::/\n", version_2("", f"{4000 * MIB}", used=3000, cached=2500))
    assert available_on_host(*there) == (4000 - 3000 + 2500) * MIB


def test_the_narrowest_of_the_groups_that_a_process_is_in_decides(tmp_path):
    files = version_2("", "max", 9000, 0)
    files |= version_2("user/", f"{2000 * MIB}", 500, 100)
    files |= version_2("user/job/", f"{6000 * MIB}", 400, 100)
    assert available_on_host(*machine(tmp_path, "0::/user/job\n", files)) == 1600 * MIB


@pytest.mark.parametrize("folder", ["docker/abc/", ""])
def test_groups_of_the_first_version(tmp_path, folder):
    """In a container they are often mounted without the folders that the process is said to be in."""
    groups = "5:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc\n0::/\n"
    there = machine(tmp_path, groups, version_1(folder, 3000 * MIB, 1000, 600))
    assert available_on_host(*there) == 2600 * MIB


def test_a_group_without_a_limit_limits_nothing(tmp_path):
    files = {**version_1("", 9223372036854771712, 1000, 600), **version_2("", "max", 1000, 0)}
    assert available_on_host(*machine(tmp_path, "4:memory:/\n0::/\n", files)) == 8000 * MIB


def test_a_system_that_does_not_tell(tmp_path):
    assert available_on_host(tmp_path / "proc", tmp_path / "cgroup") == memory.UNKNOWN


def test_a_group_beyond_its_limit_has_nothing_left(tmp_path):
    there = machine(tmp_path, "0::/\n", version_2("", f"{100 * MIB}", used=300, cached=0))
    assert available_on_host(*there) == 0
