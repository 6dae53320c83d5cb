"""Work of a function as a number of calls, the same on a busy machine as on a quiet one, where seconds are not."""

import sys
from collections.abc import Callable


def count_calls(function: Callable[[], object]) -> int:
    """Return how many functions, of Python and of C, `function` calls, resumed generators included."""
    count = 0

    def profile(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        function()
    finally:
        sys.setprofile(before)
    return count
