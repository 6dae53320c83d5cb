"""`fedgen recipes`: the recipes that `fedgen fit` finds by name."""

from collections.abc import Sequence
from textwrap import fill

from jsonargparse import auto_cli

from fedgen.flags import CommandParser
from fedgen.progress import make_console
from fedgen.recipe.recipe_files import describe, known_recipes, time_and_score

INDENT = "  "
COLUMNS = 120  # wider lines are hard to read
MEANING = (
    "Times are for two CPU cores. FID-all is the last checkpoint's, beside that of held-out real images; each embedding"
    " and number of images has a scale of its own."
)


def list_recipes() -> None:
    """Lists the recipes that are found by name with what they train, time and score; `fedgen fit NAME` runs one.

    They are those in a folder `recipes` here, and the package's own.
    """
    found, console = known_recipes(), make_console()
    room = min(console.width, COLUMNS)
    for name, path in found.items():
        words = fill(describe(path), room, initial_indent=INDENT, subsequent_indent=INDENT)
        lines = [f"{name}  {time_and_score(path)}".rstrip(), words]
        console.print("\n".join(filter(None, lines)), markup=False, highlight=False, soft_wrap=True)
    none = "no recipes here, and none came with the package; give `fedgen fit` the path of one"
    ending = f"\n{fill(MEANING, room)}" if found else fill(none, room)
    console.print(ending, markup=False, highlight=False, soft_wrap=True)


def recipes(arguments: Sequence[str]) -> int:
    """`fedgen recipes`."""
    auto_cli(list_recipes, args=list(arguments), prog="fedgen recipes", parser_class=CommandParser)
    return 0
