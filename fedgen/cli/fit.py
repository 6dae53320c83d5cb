"""`fedgen fit`: a screen of options, and a look at the recipe before Lightning is loaded; and `fedgen recipes`."""

import os
import sys
from collections.abc import Sequence
from textwrap import fill

from fedgen.recipe.recipe_files import describe, given_recipes, known_recipes, read_given, time_and_score, with_recipe

HELP = """\
usage: fedgen fit RECIPE [--setting VALUE ...] [--local_only | --centralised]

Train from a recipe, score checkpoints on the way, and report the best one.
RECIPE is a name (`fedgen recipes` lists them) or a path. To resume a stopped
run, repeat its command.

examples:
  fedgen fit quickstart
  fedgen fit quickstart --trainer.max_epochs 400 --trainer.default_root_dir a
  fedgen fit quickstart --model.lr 0.002 --trainer.default_root_dir b
  fedgen fit quickstart --data.partition IID --data.partition.num_clients 10 \\
      --trainer.default_root_dir c

the run:
  --trainer.max_epochs N           rounds
  --trainer.default_root_dir DIR   run folder (checkpoints/RECIPE)
  --trainer.accelerator NAME       cpu, gpu, ...; --trainer.devices N
  --seed_everything N              same seed, same run (0)
  --ckpt_path previous             resume from the checkpoint before last
  --threads N                      CPU threads
  --explain                        after the first round, print what clients
                                   exchange, keep and reset

the federation:
  --trainer.strategy.communication_interval N   iterations per client turn
  --trainer.strategy.cohort_size N              clients per round
  --data.data CLASS, --data.partition CLASS     data set and partition
  --local_only, --centralised                   controls, in their own folders

the scores:
  --trainer.callbacks.every_n_rounds N          rounds between evaluations
  --trainer.callbacks.num_images N              generated images each time
  --trainer.callbacks.scores '[fid, kid]'       and .embeddings '[pixels]'

to inspect:
  --print_config                   every setting of the recipe, with defaults
  --model.help CLASS               settings of a class; also --data.help
  --help-all                       every option, Lightning's Trainer included
"""
COLUMNS = 120  # wider lines are hard to read
MEANING = (
    "Times are for two CPU cores. FID-all is the last checkpoint's, beside that of held-out real images; compare values"
    " only at the same embedding and number of images."
)


def fit(arguments: Sequence[str]) -> int:
    """`fedgen fit RECIPE [--any.override ...]`, a recipe's name or --config and its path."""
    if {"-h", "--help"} & set(arguments):
        print(HELP, end="")
        return 0
    given = with_recipe(arguments)
    if not given_recipes(given) and not given:
        print(
            "fedgen fit: error: give a recipe by name (`fedgen recipes` lists them) or by path",
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
    """Lists recipes by name, with what each trains, its time and its score; `fedgen fit NAME` runs one.

    Recipes come from the folder `recipes` here and from the package.
    """
    from fedgen.progress import make_console

    found, console = known_recipes(), make_console()
    room = min(console.width, COLUMNS)
    for name, path in found.items():
        words = fill(describe(path), room, initial_indent="  ", subsequent_indent="  ")
        lines = [f"{name}  {time_and_score(path)}".rstrip(), words]
        console.print("\n".join(filter(None, lines)), markup=False, highlight=False, soft_wrap=True)
    none = "no recipes here or in the package; give `fedgen fit` a recipe's path"
    ending = f"\n{fill(MEANING, room)}" if found else fill(none, room)
    console.print(ending, markup=False, highlight=False, soft_wrap=True)
