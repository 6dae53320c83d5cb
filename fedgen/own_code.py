"""Whose code an error or a warning came through, the user's own or that of libraries; and how its user started it."""

import inspect
import os
import shlex
import shutil
import sys
import sysconfig
import traceback
import warnings
from pathlib import Path

_PACKAGE = str(Path(__file__).parent) + os.sep
_COMMAND = str(Path(__file__).with_name("__main__.py"))
_KEPT = "lines_of_own_code"  # of an error that a process sent to another, which gets no frames
_OTHERS = (_PACKAGE, *{sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warns at the innermost line of the user's own code; in a command without any, at the caller's."""
    frames = [frame for frame, _ in traceback.walk_stack(inspect.currentframe())]
    files = [frame.f_code.co_filename for frame in frames]
    called = files[: files.index(_COMMAND)] if _COMMAND in files else files  # what starts a command is not the user's
    callers = (place for place, file in enumerate(files) if is_of_kit(file) and file != __file__)
    frame = frames[next((place for place, file in enumerate(called) if _is_own(file)), next(callers, -1))]
    name, registry = frame.f_globals.get("__name__"), frame.f_globals.setdefault("__warningregistry__", {})
    warnings.warn_explicit(message, category, frame.f_code.co_filename, frame.f_lineno, name, registry)


def rank_zero_warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warns as `warn` does, in the first process of a job alone."""
    from lightning.pytorch.utilities.rank_zero import rank_zero_only  # slow to import

    rank_zero_only(warn)(message, category)


def own_frames(error: BaseException | None) -> list[traceback.FrameSummary]:
    """The lines that an error came through in code that is neither a library's nor this package's, outermost first."""
    frames = traceback.extract_tb(error.__traceback__) if error is not None else []
    return [one for one in frames if _is_own(one.filename)]


def from_own_code(error: BaseException) -> str:
    """The error's traceback from the first line of the user's own code on, with its notes; "" if there is none."""
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


def program() -> str:
    """Return the words that start the command line as its user did: "fedgen", "python -m fedgen", ..."""
    started = Path(sys.argv[0] or "fedgen")
    if started.resolve() == Path(_COMMAND).resolve():
        return f"{shlex.quote(sys.orig_argv[0])} -m fedgen"
    found = shutil.which("fedgen")
    if started.name != "fedgen" or len(started.parts) == 1 or (found and started.resolve() == Path(found).resolve()):
        return "fedgen"
    return shlex.quote(str(started))
