"""An evaluation on several processes, as a script: `python -m tests.evaluation.rank_scores DEVICES FOLDER`.

Lightning starts the other processes. Rank r writes FOLDER/calls-r.txt, how often its model was asked for images,
FOLDER/group-r.txt, whether it is still in its process group when Python ends, and FOLDER/done-r.json, how many images
it embedded, and how many trace terms and critics it worked out; rank 0 writes the records.
"""

import atexit
import json
import os
import sys
from collections import Counter
from pathlib import Path

import lightning as L
import torch

from fedgen import FedAvgStrategy, FederatedDataModule
from fedgen.callbacks import FederatedEvaluation
from fedgen.clients.partitions import Natural
from fedgen.data import Examples
from fedgen.embeddings.base import Pixels
from fedgen.ranks import spread, together
from fedgen.scores.frechet.frechet import InfluenceErrors
from fedgen.scores.wasserstein import wasserstein
from tests.trainers import quiet_trainer

SIZES = (140, 180, 260)  # a client of more images than features, so that FID's pool has a transport map
CRITIC = {"hidden": 8, "batch_size": 64, "max_steps": 20}
DONE = Counter()  # by kind of work, on this rank


def count(owner, name, kind, size=lambda arguments: 1):
    """Counts a function's calls, or what `size` makes of their arguments."""
    plain = getattr(owner, name)

    def counted(*arguments, **options):
        DONE[kind] += size(arguments)
        return plain(*arguments, **options)

    setattr(owner, name, counted)


class Square(L.LightningModule):
    """Images of one level each, drawn with the generator it is given."""

    num_classes = 2

    def __init__(self, folder):
        super().__init__()
        self.level = torch.nn.Parameter(torch.zeros(()))
        self.folder, self.calls = Path(folder), 0

    def sample(self, num_images, generator=None, labels=None):
        self.calls += 1
        shift = 0 if labels is None else labels[:, None, None, None] / 2
        return (torch.randn(num_images, 1, 4, 4, generator=generator) / 3 + self.level + shift).clamp(-1, 1)

    def training_step(self, batch, batch_idx):
        return (batch[0].mean() - self.level).square()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)

    def on_fit_end(self):
        (self.folder / f"calls-{self.trainer.global_rank}.txt").write_text(str(self.calls))
        (self.folder / f"done-{self.trainer.global_rank}.json").write_text(json.dumps(DONE))
        if self.trainer.world_size > 1:
            (self.folder / f"failure-{self.trainer.global_rank}.txt").write_text(failure_of(self.trainer.global_rank))


def failure_of(rank):
    """What a rank says when the last one's share of some work fails."""

    def work(item):
        if item == 1:
            raise KeyError("the share of rank 1")
        return item

    try:
        with together():
            list(spread(work, range(5)))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def write_group(folder):
    rank = os.environ.get("LOCAL_RANK", "0")
    (Path(folder) / f"group-{rank}.txt").write_text(str(torch.distributed.is_initialized()))


def examples():
    draws = torch.Generator().manual_seed(1)
    owners = torch.arange(len(SIZES)).repeat_interleave(torch.tensor(SIZES))
    images = (
        torch.randint(0, 200, (sum(SIZES), 1, 4, 4), generator=draws, dtype=torch.uint8) + owners[:, None, None, None]
    )
    return Examples(images.byte(), owners % 2, "squares", ("even", "odd"), owners, tuple("abc"))


def main(devices, folder):
    atexit.register(write_group, folder)  # what is registered first runs last
    count(Pixels, "features", "images", lambda arguments: len(arguments[1]))
    count(InfluenceErrors, "visit", "traces", lambda arguments: len(arguments[1].members))
    count(wasserstein, "train_critic", "critics")
    scores = ["fid", "kid", "precision", "coverage", "sw1", {"name": "w1", **CRITIC}]
    options = {"num_images": 260, "batch_size": 16, "at_start": True, "grid": 0, "report": False, "page": False}
    evaluation = FederatedEvaluation(embeddings=["pixels"], scores=scores, dirpath=folder, **options)
    evaluation.settings["chunk"] = 100  # of images drawn at once
    strategy = FedAvgStrategy(communication_interval=2, process_group_backend="gloo")
    L.seed_everything(0, verbose=False)
    quiet_trainer(strategy=strategy, devices=devices, callbacks=[evaluation]).fit(
        Square(folder), FederatedDataModule(examples(), Natural(), 20, held_out=0.2, seed=1)
    )


def run(arguments):
    """What the script's arguments ask for."""
    main(int(arguments[0]), arguments[1])


if __name__ == "__main__":
    run(sys.argv[1:])
