"""Trainings whose modules exchange values between processes in their steps, as a script.

`python -m tests.federated.collective_runs trains DEVICES FOLDER` trains modules on clients as `TRAINED` says. Rank 0
writes its final weights, FOLDER/NAME-CLIENTS.pt; every rank writes what `Asks` was answered, FOLDER/asked-RANK.pt.
`ends DEVICES FOLDER WHERE` does not end by itself: turns of the second round wait, as one of `WAITS` does.
"""

import sys
import time
from datetime import timedelta
from pathlib import Path

import lightning as L
import torch
import torch.distributed as dist
from torch import nn

from fedgen import FedAvgStrategy, FederatedDataModule
from fedgen.callbacks import RoundCheckpoint
from fedgen.clients.partitions import Natural
from fedgen.data import Examples
from fedgen.ranks import SHORT, Ranks
from tests.federated.modules import Quadratic, make_quadratics
from tests.foreign.contrastive import DINO
from tests.trainers import quiet_trainer

SIZES = (8, 4, 12, 8, 4)  # examples; batches of 4
answers = []  # (hook, what torch.distributed and Lightning say there)


class Synchronised(L.LightningModule):
    """SyncBatchNorm, a centre over all processes (as DINO's), and a loss over the features of all processes."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 4, bias=False), nn.SyncBatchNorm(4))
        self.register_buffer("center", torch.zeros(4))

    @torch.no_grad()
    def move_center(self, features):
        total, count = features.sum(0), len(features)
        if dist.is_initialized():
            dist.all_reduce(total)
            count *= dist.get_world_size()
        self.center.lerp_(total / count, 0.5)

    def training_step(self, batch, batch_idx):
        features = torch.tanh(self.body(batch[0]))
        self.move_center(features.detach())
        others = self.all_gather(features.detach()).flatten(0, -2)
        return (features - self.center).square().mean() - (features @ others.T).mean() / self.trainer.world_size

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1 * self.trainer.world_size)


# fewer clients than three processes, as many, and more; who trains where is the same of every module
TRAINED = [*((Synchronised, clients) for clients in (2, 3, 5)), (DINO, 5)]


class Asks(Quadratic):
    """Asks in each hook how many processes there are."""

    def ask(self, hook):
        trainer, alone = self.trainer, torch.tensor([3.0])
        said = {
            "started": dist.is_initialized(),
            "trainer": (trainer.world_size, trainer.global_rank, trainer.is_global_zero),
            "module": self.global_rank,
            "gathered": self.all_gather(alone).flatten().tolist(),
        }
        if trainer.num_devices > 1:  # one process has no group to ask without asking for it first
            dist.all_reduce(alone)
            found = [None] * dist.get_world_size()
            dist.all_gather_object(found, dist.get_rank())
            said["group"] = (dist.get_world_size(), dist.get_rank(), alone.item(), found)
            words = [Ranks().gather(length * dist.get_rank() * "x") for length in (10, 3 * SHORT)]
            said["words"] = [[len(word) for word in told] for told in words]
        answers.append((hook, said))

    def configure_optimizers(self):
        self.ask("configure_optimizers")
        return super().configure_optimizers()

    def on_train_start(self):
        self.ask("on_train_start")

    def on_turn_start(self, turn):
        self.ask("on_turn_start")

    def training_step(self, batch, batch_idx):
        self.ask("training_step")
        if batch[0][0, 1] == 4.0:
            raise ValueError("this client's turn fails")
        return super().training_step(batch, batch_idx)

    def on_turn_end(self, completed):
        self.ask("on_turn_end")

    def on_round_end(self, iterations):
        self.ask("on_round_end")


def pictures(clients):
    """Of 8 x 8 pixels, brighter from client to client."""
    sizes = torch.tensor(SIZES[:clients])
    owners = torch.arange(clients).repeat_interleave(sizes)
    noise = torch.randint(0, 128, (len(owners), 1, 8, 8), generator=torch.Generator().manual_seed(3), dtype=torch.uint8)
    inputs = noise + 30 * owners[:, None, None, None].to(torch.uint8)
    return Examples(inputs, torch.zeros_like(owners), "pictures", (), owners, tuple("abcde"[:clients]))


def fit(module, data, devices, folder, interval=3, rounds=3):
    torch.manual_seed(0)
    strategy = FedAvgStrategy(interval, seed=1, process_group_backend="gloo")
    options = {"callbacks": [RoundCheckpoint(folder, every_n_rounds=1)], "enable_checkpointing": True}
    trainer = quiet_trainer(
        rounds, strategy=strategy, devices=devices, precision="64-true", default_root_dir=folder, **options
    )
    trainer.fit(module, data)
    return trainer


def train(devices, folder):
    for kind, clients in TRAINED:
        torch.manual_seed(0)
        module = kind()
        name = f"{kind.__name__}-{clients}"
        data = FederatedDataModule(pictures(clients), Natural(), 4, held_out=0.0, seed=1)
        trainer = fit(module, data, devices, folder / name)
        if trainer.is_global_zero:
            torch.save(module.state_dict(), folder / f"{name}.pt")
    quadratics = make_quadratics(((1.0, 0.0), (3.0, 4.0), (1.0, 2.0)), (2, 2, 2))
    trainer = fit(Asks(), quadratics, devices, folder / "asks", rounds=1)
    torch.save(answers, folder / f"asked-{trainer.global_rank}.pt")
    trainer.strategy.barrier()


def long_turn():
    """Goes on in Python."""
    while True:
        time.sleep(0.1)


def own_group():
    """The first process waits for the others by a group of its own; they go on to the round's end and wait there."""
    if Waits.rank == 0:
        dist.all_reduce(torch.ones(1), group=Waits.group)


def outside_python():
    """Waits in one call of C++, as one process may, too."""
    dist.TCPStore("127.0.0.1", 0, is_master=True).wait(["never"], timedelta(hours=1))


WAITS = {"long turn": long_turn, "own group": own_group, "outside python": outside_python}


class Waits(Quadratic):
    """Waits in the second round's turns."""

    how = group = rank = None

    def on_train_start(self):
        Waits.rank = self.global_rank
        Waits.group = dist.new_group() if self.trainer.world_size > 1 else None

    def training_step(self, batch, batch_idx):
        if self.current_epoch == 1:
            print("waits", flush=True)
            Waits.how()
        return super().training_step(batch, batch_idx)


def run(arguments):
    """What the script's arguments ask for."""
    what, devices, folder, *where = arguments
    if what == "trains":
        train(int(devices), Path(folder))
    else:
        Waits.how = WAITS[where[0]]
        fit(Waits(), make_quadratics(), int(devices), Path(folder))


if __name__ == "__main__":
    run(sys.argv[1:])
