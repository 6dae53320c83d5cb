"""Whose code an error or a warning came through: the user's own, or that of libraries and of this package."""

import inspect
import os
import sysconfig
import traceback
import warnings
from pathlib import Path

_PACKAGE = str(Path(__file__).parent) + os.sep
_KEPT = "lines_of_own_code"  # of an error that a process sent to another, which gets no frames
_OTHERS = (_PACKAGE, *{sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warns at the innermost line of the user's own code, or at the caller's where there is none."""
    levels = enumerate(traceback.walk_stack(inspect.currentframe()), 1)
    own = (level for level, (frame, _) in levels if _is_own(frame.f_code.co_filename))
    warnings.warn(message, category, stacklevel=next(own, 2))


def rank_zero_warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warns as `warn` does, in the first process of a job alone."""
    from lightning.pytorch.utilities.rank_zero import rank_zero_only  # slow to import

    rank_zero_only(warn)(message, category)


def own_frames(error: BaseException | None) -> list[traceback.FrameSummary]:
    """The lines that an error came through in code that is neither a library's nor this package's, outermost first."""
    frames = traceback.extract_tb(error.__traceback__) if error is not None else []
    return [one for one in frames if _is_own(one.filename)]


def from_own_code(error: BaseException) -> str:
    """The error's traceback from the first line of the user's own code on, with its notes; "" if there is none.

    Of an error from another process the lines that `keep_lines` kept there come last.
    """
    lines = _lines(error)
    told = ["Traceback (from your code on):\n", *lines, *traceback.format_exception_only(error)]
    return "".join(told) if lines else ""


def keep_lines(error: BaseException) -> None:
    """Makes an error take the lines of its traceback along to another process."""
    setattr(error, _KEPT, _lines(error))


def _lines(error: BaseException) -> list[str]:
    frames = traceback.extract_tb(error.__traceback__)
    start = next((place for place, one in enumerate(frames) if _is_own(one.filename)), None)
    here = [] if start is None else traceback.format_list(frames[start:])
    return [*here, *vars(error).get(_KEPT, [])]


def is_of_kit(filename: str) -> bool:
    """Whether a file of source is this package's."""
    return Path(filename).is_relative_to(_PACKAGE)


def _is_own(filename: str) -> bool:
    return not (filename.startswith((*_OTHERS, "<")) or "site-packages" in filename)
