"""What the allocator keeps, by the pages that a process faults in."""

import inspect
import os
import platform
import subprocess
import sys

import pytest

from fedgen.federated.lightning.one_or_many import keep_freed_memory

# a step that takes 64 MB in 64 blocks, touches them and frees them, four times after the first; the function by its
# source, as the module that it is in imports for seconds
STEPS = f"""
import ctypes, os, platform, resource, sys
{inspect.getsource(keep_freed_memory)}
print(keep_freed_memory() if sys.argv[1] == "keep" else None)

def step():
    blocks = [bytearray(2**20) for _ in range(64)]
    for block in blocks:
        block[::4096] = b"1" * 256

step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(4):
    step()
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / 4)
"""

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is told anything")


def faults_of_a_step(mode, **variables):
    """What the call gave back, and page faults a step of 16,384 pages of 4 KB."""
    others = {name: value for name, value in os.environ.items() if "MALLOC" not in name and "TUNABLES" not in name}
    command = [sys.executable, "-c", STEPS, mode]
    told = subprocess.run(command, env={**others, **variables}, capture_output=True, text=True, check=True, timeout=60)
    answer, faults = told.stdout.split()
    return answer, float(faults)


@pytest.mark.slow
def test_the_next_step_finds_its_pages():
    answer, kept = faults_of_a_step("keep")
    _, given_back = faults_of_a_step("as it is")
    assert answer == "True"
    assert kept < 100 < 5_000 < given_back


@pytest.mark.slow
@pytest.mark.parametrize(
    "variables", [{"MALLOC_TRIM_THRESHOLD_": "131072"}, {"GLIBC_TUNABLES": "glibc.malloc.trim_threshold=131072"}]
)
def test_whoever_set_the_allocator_keeps_their_setting(variables):
    answer, faults = faults_of_a_step("keep", **variables)
    assert answer == "False"
    assert faults > 5_000
