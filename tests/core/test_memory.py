"""What memory the machine and its control groups have left, and bytes as people read
them."""

import subprocess
import sys

import pytest

from decoupled.core.memory import available_memory, readable_bytes

MEMINFO = "MemTotal: 100 kB\nMemAvailable:    64 kB\nSwapFree:  16 kB\n"
FREE = 80 * 1024


@pytest.fixture
def system(tmp_path):
    """Writes files of a system below tmp_path, whose path it returns."""

    def write(own_groups="", **contents):
        (tmp_path / "proc" / "self").mkdir(parents=True)
        (tmp_path / "proc" / "meminfo").write_text(MEMINFO)
        (tmp_path / "proc" / "self" / "cgroup").write_text(own_groups)
        for folder, files in contents.items():
            below = tmp_path / "sys" / "fs" / "cgroup" / folder.replace("__", "/")
            below.mkdir(parents=True, exist_ok=True)
            for name, content in files.items():
                (below / name).write_text(content)
        return str(tmp_path)

    return write


def group_2(limit, used, inactive=0):
    stat = f"anon 1\ninactive_file {inactive}\nactive_file 9\ntotal_inactive_file 77\n"
    return {
        "memory.max": f"{limit}\n",
        "memory.current": f"{used}\n",
        "memory.stat": stat,
    }


def group_1(limit, used, inactive=0):
    stat = f"cache 9\ninactive_file 77\ntotal_inactive_file {inactive}\n"
    return {
        "memory.limit_in_bytes": f"{limit}\n",
        "memory.usage_in_bytes": f"{used}\n",
        "memory.stat": stat,
    }


def test_a_machine_without_groups(system):
    assert available_memory(system()) == FREE


def test_a_system_that_does_not_say(tmp_path):
    assert available_memory(str(tmp_path)) is None


@pytest.mark.parametrize(
    "used, inactive, left", [(0, 0, 5000), (4000, 0, 1000), (4000, 1500, 2500)]
)
def test_a_group_has_left_what_it_does_not_use(system, used, inactive, left):
    found = system("0::/job\n", job=group_2(5000, used, inactive))
    assert available_memory(found) == left


def test_groups_of_version_1(system):
    own = "12:cpu,cpuacct:/other\n4:memory:/job\n"
    found = system(own, memory__job=group_1(5000, 4000, 1500))
    assert available_memory(found) == 2500


@pytest.mark.parametrize("outer", [True, False])
def test_the_tightest_of_the_groups_around_a_process_holds(system, outer):
    limits = [(5000, 4000), (6000, 100)]
    inside, around = limits if outer else limits[::-1]
    found = system("0::/a/b\n", a__b=group_2(*inside), a=group_2(*around))
    assert available_memory(found) == 1000


def test_a_container_whose_own_group_stands_at_the_top(system):
    # Its path is that of the host, which cannot be seen from inside.
    own = "4:memory:/docker/0123\n"
    assert available_memory(system(own, memory=group_1(5000, 1000))) == 4000


def test_a_group_without_a_limit(system):
    found = system("0::/job\n", job=group_2("max", 4000))
    assert available_memory(found) == FREE


def test_a_version_1_group_without_a_limit(system):
    found = system("4:memory:/\n", memory=group_1(9223372036854771712, 4000))
    assert available_memory(found) == FREE


def test_a_group_that_uses_more_than_its_limit_has_nothing_left(system):
    # As after the limit was lowered.
    assert available_memory(system("0::/job\n", job=group_2(5000, 9000))) == 0


@pytest.mark.parametrize(
    "own", ["0::/../../elsewhere\n", "no line of this kind\n", ":"]
)
def test_odd_groups_are_passed_over(system, own):
    assert available_memory(system(own, elsewhere=group_2("x", "y"))) == FREE


def test_this_machine():
    assert available_memory() is None or available_memory() > 0


@pytest.mark.parametrize(
    "count, text",
    [
        (0, "0 bytes"),
        (1023, "1,023 bytes"),
        (1024, "1.00 KiB"),
        (3.5 * 2**20, "3.50 MiB"),
        (2**20 - 1, "1.00 MiB"),
        (15.2 * 2**30, "15.20 GiB"),
        (2**50, "1,024.00 TiB"),
        (-2048, "-2.00 KiB"),
    ],
)
def test_bytes_stand_in_the_unit_that_suits_them(count, text):
    assert readable_bytes(count) == text


def test_estimates_are_said_with_fewer_digits():
    assert readable_bytes(12.04 * 2**30, 1) == "12.0 GiB"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells of mappings")
def test_pages_of_libraries_are_released_and_read_again():
    code = """
import re
import numpy as np
from decoupled.core.memory import release_library_pages

def of_files():
    return int(re.search(r"RssFile:\\s+(\\d+)", open("/proc/self/status").read())[1])

matrix = np.arange(9.0).reshape(3, 3) + np.eye(3)
expected = np.linalg.inv(matrix)
before = of_files()
release_library_pages()
print(of_files() < before / 2)
print((np.linalg.inv(matrix) == expected).all(), np.fft.fft([1.0, 0.0]))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout == "True\nTrue [1.+0.j 1.+0.j]\n"
