"""Saving of figures whose words come from records: text that is drawn as it stands, in lines of bounded length."""

import warnings
from pathlib import Path
from typing import Any

from fedgen.foreign_text import printable
from fedgen.io.files import atomic_write

LONGEST_LINE = 200  # characters; the layout takes the more time the longer one is


def save_picture(figure: Any, path: str | Path, dpi: int = 130) -> Path:
    """Writes a figure as PNG, whole or not at all; returns its path.

    Names in it are no formulas: with two dollar signs one would be read as such, and end the drawing where it is none.
    Powers of ten beside logarithmic axes stay formulas.

    Args:
        figure: of matplotlib.
        path: of the picture.
        dpi: pixels an inch.
    """
    from matplotlib.text import Text

    powers = {
        label
        for axes in figure.findobj(lambda artist: hasattr(artist, "get_xscale"))
        for axis in (axes.xaxis, axes.yaxis)
        if axis.get_scale() != "linear"
        for label in axis.get_ticklabels(which="both")
    }
    for text in figure.findobj(Text):
        if text not in powers:
            text.set_parse_math(False)
            shown = "\n".join(printable(line, LONGEST_LINE) for line in text.get_text().split("\n"))
            if shown != text.get_text():
                text.set_text(shown)
    with atomic_write(path) as file, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph", UserWarning)  # names in scripts that the font lacks show as boxes
        figure.savefig(file, format="png", dpi=dpi)
    return Path(path)
