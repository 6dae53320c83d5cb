"""`fedgen recipes`: the recipes that `fedgen fit` finds by name."""

from collections.abc import Sequence
from textwrap import shorten

from jsonargparse import auto_cli

from fedgen.flags import CommandParser
from fedgen.progress import make_console
from fedgen.recipe.recipe_files import describe, known_recipes


def list_recipes() -> None:
    """Lists the recipes that are found by name, a line each with what they train; `fedgen fit NAME` runs one.

    They are those in a folder `recipes` here, and the package's own.
    """
    found, console = known_recipes(), make_console()
    longest = max(map(len, found), default=0)
    for name, path in found.items():
        words = shorten(describe(path), max(console.width - longest - 4, 20), placeholder=" ...")
        console.print(f"  {name:<{longest}}  {words}".rstrip(), markup=False, highlight=False, soft_wrap=True)
    if not found:
        console.print("no recipes here, and none came with the package; give `fedgen fit` the path of one")


def recipes(arguments: Sequence[str]) -> int:
    """`fedgen recipes`."""
    auto_cli(list_recipes, args=list(arguments), prog="fedgen recipes", parser_class=CommandParser)
    return 0
