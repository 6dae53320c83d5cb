"""The page that is written anew while a run trains, for a hundredth of its evaluations' time at most."""

import time
from pathlib import Path

from fedgen.evaluation.runs.scores_file import SCORES_FILE
from fedgen.own_code import warn
from fedgen.reports.contents import read_contents
from fedgen.reports.logged import Logs
from fedgen.reports.page import PAGE, render
from fedgen.reports.pictures import Pictures

SHARE = 0.01  # of the evaluations' time that the page may take while training goes on
GUESS = 0.05  # seconds that a page is taken to need before one was measured


class LivePage:
    """`report.html` of a run that trains. What was read of logs and pictures is not read again.

    Args:
        folder: of the run.

    Attributes:
        written: how often the page was written.
        spent: seconds that this took, without the first time, when the template is read and compiled.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.written, self.spent = 0, 0.0
        self._evaluated, self._last = 0.0, GUESS
        self._logs, self._pictures = Logs(self.folder), Pictures()

    @property
    def path(self) -> Path:
        """The file of the page."""
        return self.folder / PAGE

    def evaluated(self, seconds: float) -> bool:
        """Writes the page if all writing so far, this one included, stays below a hundredth of evaluations' time.

        Args:
            seconds: that the evaluation took.

        Returns:
            Whether it was written.
        """
        self._evaluated += seconds
        if self.spent + self._last > SHARE * self._evaluated:
            return False
        return self.write(live=True)

    def write(self, live: bool = False) -> bool:
        """Writes the page, whole or not at all; training goes on where it cannot be, with a warning.

        Args:
            live: whether training goes on.
        """
        if not (self.folder / SCORES_FILE).exists():
            return False
        began = time.perf_counter()
        try:
            render([read_contents(self.folder, self._logs, self._pictures)], live).save(self.path)
        except Exception as error:  # whatever it is: days of training do not end for a page
            warn(f"{self.path} is not written: {type(error).__name__}: {error}")
            return False
        if self.written:
            self._last = time.perf_counter() - began
            self.spent += self._last
        self.written += 1
        return True
