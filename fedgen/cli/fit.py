"""`fedgen fit`: a screen of options, and a look at the recipe before Lightning is loaded; and `fedgen recipes`."""

import os
import sys
from collections.abc import Sequence
from textwrap import fill

from fedgen.recipe.recipe_files import describe, given_recipes, known_recipes, read_given, time_and_score, with_recipe

HELP = """\
usage: fedgen fit RECIPE [--setting VALUE ...] [--local_only | --centralised]

Train from a recipe, score it at rounds, and say which checkpoint is best.
RECIPE is a name (`fedgen recipes` lists them) or a path. A run that was stopped
goes on by the same command.

examples:
  fedgen fit quickstart
  fedgen fit quickstart --trainer.max_epochs 400 --trainer.default_root_dir a
  fedgen fit quickstart --model.lr 0.002 --trainer.default_root_dir b
  fedgen fit quickstart --data.partition IID --data.partition.num_clients 10 \\
      --trainer.default_root_dir c

the run:
  --trainer.max_epochs N           rounds
  --trainer.default_root_dir DIR   its folder (checkpoints/RECIPE)
  --trainer.accelerator NAME       cpu, gpu, ...; --trainer.devices N
  --seed_everything N              same seed, same run (0)
  --ckpt_path previous             go on from the checkpoint before the last
  --threads N                      CPU threads
  --explain                        trains, and prints after the first round
                                   what clients exchange, keep and reset

the federation:
  --trainer.strategy.communication_interval N   iterations of a client's turn
  --trainer.strategy.cohort_size N              clients of a round
  --data.data CLASS, --data.partition CLASS     data set, and who has what
  --local_only, --centralised                   the controls, in own folders

the scores:
  --trainer.callbacks.every_n_rounds N          rounds between evaluations
  --trainer.callbacks.num_images N              generated images of each
  --trainer.callbacks.scores '[fid, kid]'       and .embeddings '[pixels]'

to look:
  --print_config                   every setting of the recipe, with defaults
  --model.help CLASS               settings of a class; --data.help likewise
  --help-all                       every option, of Lightning's Trainer too
"""
COLUMNS = 120  # wider lines are hard to read
MEANING = (
    "Times are for two CPU cores. FID-all is the last checkpoint's, beside that of held-out real images; each embedding"
    " and number of images has a scale of its own."
)


def fit(arguments: Sequence[str]) -> int:
    """`fedgen fit RECIPE [--any.override ...]`, a recipe's name or --config and its path."""
    if {"-h", "--help"} & set(arguments):
        print(HELP, end="")
        return 0
    given = with_recipe(arguments)
    if not given_recipes(given) and not given:
        print(
            "fedgen fit: error: give a recipe: its name, of those that `fedgen recipes` lists, or its path",
            file=sys.stderr,
        )
        return 2
    try:
        for text in given_recipes(given):
            read_given(text)
    except (OSError, ValueError) as error:
        if os.environ.get("FEDGEN_TRACEBACK"):
            raise
        from fedgen.recipe.recipe_objects import refuse

        refuse(str(error))
    from fedgen.training.fit import fit as train

    train(given)
    return 0


def list_recipes() -> None:
    """Lists the recipes that are found by name with what they train, time and score; `fedgen fit NAME` runs one.

    They are those in a folder `recipes` here, and the package's own.
    """
    from fedgen.progress import make_console

    found, console = known_recipes(), make_console()
    room = min(console.width, COLUMNS)
    for name, path in found.items():
        words = fill(describe(path), room, initial_indent="  ", subsequent_indent="  ")
        lines = [f"{name}  {time_and_score(path)}".rstrip(), words]
        console.print("\n".join(filter(None, lines)), markup=False, highlight=False, soft_wrap=True)
    none = "no recipes here, and none came with the package; give `fedgen fit` the path of one"
    ending = f"\n{fill(MEANING, room)}" if found else fill(none, room)
    console.print(ending, markup=False, highlight=False, soft_wrap=True)
