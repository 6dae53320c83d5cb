"""`fedgen fit --help`: the usual options on one screen; `--help-all` has every one."""

TEXT = """\
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
  --explain                        what clients exchange, keep and reset
  --model.help CLASS               settings of a class; --data.help likewise
  --help-all                       every option, of Lightning's Trainer too
"""


def print_help() -> None:
    """Prints the usual options."""
    print(TEXT, end="")
