"""The C library's allocator, told to keep what is freed: a training step frees what the next one takes again."""

import ctypes
import os
import platform

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # of mallopt(3)
KEPT = 256 * 2**20  # freed bytes at the heap's end that stay with the process
ON_HEAP = 32 * 2**20  # blocks up to this size come from the heap: where glibc's own threshold ends when it adapts


def keep_freed_memory() -> bool:
    """Lets up to 256 MB of freed memory stay with this process, for as long as it lives; glibc on Linux alone.

    glibc gives the heap's end back as soon as a few megabytes of it are free, which are those of a step's activations
    and gradients: the next step faults the same pages in again, a tenth of a small network's time on a CPU and up to a
    third. Tensors above 32 MB are given back as ever. Who has set the allocator by variables (`MALLOC_..._`,
    `GLIBC_TUNABLES`; mallopt(3)) has the last word.

    Returns:
        Whether that is so now by this call.
    """
    chosen = any(name.startswith("MALLOC_") for name in os.environ) or "malloc" in os.environ.get("GLIBC_TUNABLES", "")
    if chosen or platform.libc_ver()[0] != "glibc":
        return False
    library = ctypes.CDLL(None)
    return bool(library.mallopt(TRIM_THRESHOLD, KEPT) and library.mallopt(MMAP_THRESHOLD, ON_HEAP))
