"""Whose code an error came through: the user's own, or that of libraries and of this package."""

import sysconfig
import traceback
from pathlib import Path

_PACKAGE = str(Path(__file__).parent)
_OTHERS = (_PACKAGE, *{sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def own_frames(error: BaseException | None) -> list[traceback.FrameSummary]:
    """The lines that an error came through in code that is neither a library's nor this package's, outermost first."""
    frames = traceback.extract_tb(error.__traceback__) if error is not None else []
    return [one for one in frames if _is_own(one.filename)]


def from_own_code(error: BaseException) -> str:
    """The error's traceback from the first line of the user's own code on, with its notes; "" if there is none."""
    frames = traceback.extract_tb(error.__traceback__)
    start = next((place for place, one in enumerate(frames) if _is_own(one.filename)), None)
    if start is None:
        return ""
    lines = traceback.format_list(frames[start:])
    return "".join(["Traceback (from your code on):\n", *lines, *traceback.format_exception_only(error)])


def is_of_kit(filename: str) -> bool:
    """Whether a file of source is this package's."""
    return Path(filename).is_relative_to(_PACKAGE)


def _is_own(filename: str) -> bool:
    return not (filename.startswith((*_OTHERS, "<")) or "site-packages" in filename)
