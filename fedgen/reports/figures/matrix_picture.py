"""The cross-client matrix as heat maps."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedgen.evaluation.directions import title_of
from fedgen.evaluation.personal.client_matrix import ClientMatrix
from fedgen.evaluation.tables.table import format_value
from fedgen.reports.figures.saving import save_picture

NAMED = 40  # clients; of more the axes have no names
WRITTEN = 10  # clients; of more the cells have no numbers
CELL = 0.8  # inches of a cell with its number
PANEL = 5.0, 7.5  # least and largest inches of a panel's side
NUMBER = 0.62  # of the colours' range, above which numbers are white
OUTLINE = "#c4560b"


def draw_matrices(matrices: Sequence[ClientMatrix], path: str | Path) -> Path:
    """Draws matrices and returns the path of the picture (PNG).

    A row of panels for each split and embedding, a panel for each score: the models down, the clients' images across,
    the darker the worse, own models on own images outlined. Of few clients the cells have their values with standard
    errors.

    Args:
        matrices: of one model.
        path: of the picture.

    Raises:
        ValueError: for no matrix.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    if not matrices:
        raise ValueError("no matrix to draw; score clients' own models first")
    rows: dict[tuple[str, str], list[ClientMatrix]] = {}
    for matrix in matrices:
        rows.setdefault((matrix.split, matrix.embedding), []).append(matrix)
    across = max(map(len, rows.values()))
    side = min(max(CELL * max(len(matrix.clients) for matrix in matrices), PANEL[0]), PANEL[1])
    figure = Figure(figsize=((side + 1.3) * across, (side + 1) * len(rows) + 0.5), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(rows), across, squeeze=False)
    for axes, own in zip(panels, rows.values()):
        for place, panel in enumerate(axes):
            if place < len(own):
                _draw(panel, own[place])
            else:
                panel.remove()
    first = matrices[0]
    made = f"{first.num_generated:,} images of each model, " if first.num_generated else ""
    figure.suptitle(f"each client's own model on each client's images: {made}round {first.round}", fontsize=11)
    return save_picture(figure, path)


def _draw(axes: Any, matrix: ClientMatrix) -> None:
    worse = "Blues_r" if matrix.higher_is_better else "Blues"
    image = axes.imshow(matrix.values.numpy(), cmap=worse, interpolation="nearest", aspect="auto")
    for row, column in matrix.own:
        axes.add_patch(_outline(column, row))
    if max(matrix.values.shape) <= WRITTEN:
        _write(axes, matrix, image)
    for names, place in ((matrix.clients, axes.set_xticks), (matrix.models, axes.set_yticks)):
        turned = place == axes.set_xticks and sum(map(len, names)) > NAMED
        shown = names if len(names) <= NAMED else ()
        place(range(len(shown)), shown, fontsize=8, rotation=90 if turned else 0, parse_math=False)
    axes.set_xlabel("images of")
    axes.set_ylabel("own model of")
    axes.set_title(f"{matrix.reference}\nembedding: {matrix.embedding}", fontsize=9, parse_math=False)
    direction = "higher is better" if matrix.higher_is_better else "lower is better"
    axes.figure.colorbar(image, ax=axes, fraction=0.05, pad=0.02, label=f"{title_of(matrix.score)} ({direction})")


def _outline(column: int, row: int) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, edgecolor=OUTLINE, linewidth=2)


def _write(axes: Any, matrix: ClientMatrix, image: Any) -> None:
    """Writes each cell's value into it, with its standard error below."""
    for row in range(len(matrix.models)):
        for column in range(len(matrix.clients)):
            value = float(matrix.values[row, column])
            error = None if matrix.errors is None else float(matrix.errors[row, column])
            share = image.norm(value)
            dark = (1 - share if matrix.higher_is_better else share) > NUMBER
            text = format_value(value, error).replace("±", "\n±")
            axes.text(column, row, text, ha="center", va="center", fontsize=7.5, color="white" if dark else "0.15")
