"""Trainings on several processes, as a script: `python -m tests.federated.rank_runs DEVICES FOLDER`.

Lightning starts the other processes; each configuration's final weights and what is known of the clients are written by
rank 0 as FOLDER/NAME.pt. Its checkpoints allow another number of processes to go on. With "dies" for the number of
processes there are two, a third argument says which of them ends in the last round, and a fourth by which signal. With
"scored" they train the GAN and score it after each round; with a third argument one is killed in the last round's
scoring. With "node" it is one process of each of two nodes, as the variables MASTER_ADDR, MASTER_PORT and NODE_RANK
say. The variable `SCRIPT_ON` says whether processes are on CPUs or on a GPU each, and which configurations train.
"""

import copy
import os
import signal
import sys
from pathlib import Path

import lightning as L
import schedulefree
import torch
import torch.distributed as dist
from diffusers import UNet2DModel as _  # noqa: F401 - which networks import when they are made
from torch import nn

from fedgen import DDPM, WGANGP, FedAvgStrategy, FederatedDataModule, FlowMatching, ranks
from fedgen.callbacks import FederatedEvaluation, RoundCheckpoint
from fedgen.clients.partitions import Natural
from fedgen.clients.samplers import AvailabilitySampler, Shifts, SizeSampler
from fedgen.data import Examples
from fedgen.federated import (
    Ditto,
    FedAdam,
    FedProx,
    FedRep,
    Krum,
    Median,
    NormClipping,
    PrivateMean,
    QFedAvg,
    Scaffold,
    TrimmedMean,
)
from fedgen.federated.compression import PowerSGD, TopK
from fedgen.models import VAE
from fedgen.models.diffusion.lora import LoRA
from fedgen.models.networks import AutoencoderKL, SmallCritic, SmallGenerator, UNet
from tests.trainers import quiet_trainer

SIZES = (3, 11, 6, 20, 9)
SCRIPT_ON = "RANK_RUNS_ON"  # variable: "cpu", or "cuda" with names of configurations behind it
ROUNDS = 3


class Dies(L.Callback):
    """Ends a rank by a signal in the last round, half-way through a client's turn."""

    def __init__(self, rank, sent=signal.SIGKILL):
        self.rank, self.sent = rank, sent

    def setup(self, trainer, module, stage):
        self.is_here = trainer.global_rank == self.rank  # within a turn every process is the first

    def end(self, trainer):
        if self.is_here and trainer.current_epoch == ROUNDS - 1:
            os.kill(os.getpid(), self.sent)

    def on_before_optimizer_step(self, trainer, module, optimizer):
        self.end(trainer)


class Counted:
    """torch.distributed, whose sums over ranks are counted."""

    sums = 0

    def __getattr__(self, name):
        return getattr(dist, name)

    def all_reduce(self, *arguments):
        self.sums += 1
        dist.all_reduce(*arguments)


class Broadcasts(L.Callback):
    """Counts what training's loops tell all processes."""

    count = 0

    def on_train_start(self, trainer, module):
        self.plain, dist.broadcast = dist.broadcast, self.counted

    def counted(self, *arguments, **options):
        self.count += 1
        return self.plain(*arguments, **options)

    def on_train_end(self, trainer, module):
        dist.broadcast = self.plain


class DiesScoring(Dies):
    """Kills a rank in the last round's evaluation, when it has drawn its share of the images."""

    def on_before_optimizer_step(self, trainer, module, optimizer):
        pass

    def on_train_start(self, trainer, module):
        sample = module.sample

        def last_sample(*args, **options):
            images = sample(*args, **options)
            self.end(trainer)
            return images

        module.sample = last_sample


class Net(L.LightningModule):
    """Two layers and no normalisation behind a bias: its gradient is 0, and Adam would step by its rounding."""

    def __init__(self, optimizer="sgd"):
        super().__init__()
        self.body, self.head = nn.Linear(4, 6), nn.Linear(6, 2)
        self.optimizer = optimizer

    def training_step(self, batch, batch_idx):
        noise = torch.randn(len(batch[0]), 2).to(batch[0])  # of the client's own stream, whatever the rank
        loss = (self.head(torch.tanh(self.body(batch[0]))) - batch[0][:, :2] + 0.1 * noise).square().mean()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        if self.optimizer == "sgd":
            return torch.optim.SGD(self.parameters(), 0.1)
        optimizer = torch.optim.Adam(self.parameters(), 0.01)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)]


class Hooked(Net):
    """Fails at a client; it needs what its hooks are given: gradients, and a loss that is a number."""

    def training_step(self, batch, batch_idx):
        if self.current_epoch == 1 and len(batch[0]) == SIZES[1]:
            raise RuntimeError("this client's turn fails")
        return super().training_step(batch, batch_idx)

    def on_after_backward(self):
        self.norm = float(self.head.weight.grad.norm())

    def on_train_batch_end(self, outputs, batch, batch_idx):
        assert outputs["loss"].isfinite()


class Continuing(Net):
    """Keeps a schedule and a quasi-random sequence as attributes, and trains weights that are not those evaluated."""

    def __init__(self):
        super().__init__()
        self.points, self.schedule = torch.quasirandom.SobolEngine(2), None

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx) + (self.points.draw(4) * self.head.weight[:, :2].sum()).mean()
        self.schedule.step()
        return loss

    def configure_optimizers(self):
        optimizer = schedulefree.SGDScheduleFree(self.parameters(), 0.1)
        self.schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.95)
        return optimizer


class Stateful(Net):
    """Has an average of its own weights, a flag, a counter, a schedule by steps, and values logged over processes."""

    def __init__(self):
        super().__init__()
        self.average = copy.deepcopy(self.head).requires_grad_(False)
        self.register_buffer("initialised", torch.zeros(1, dtype=torch.bool))
        self.steps = 0

    def training_step(self, batch, batch_idx):
        if not self.initialised:
            self.initialised.fill_(True)
        self.steps += 1
        loss = super().training_step(batch, batch_idx) + (self.head.weight - self.average.weight).square().sum()
        self.log("synced", loss / self.steps, on_step=True, on_epoch=True, sync_dist=True)
        return loss

    def on_train_batch_end(self, outputs, batch, batch_idx):
        with torch.no_grad():
            for average, weight in zip(self.average.parameters(), self.head.parameters()):
                average.lerp_(weight, 0.1)

    def configure_optimizers(self):
        optimizer = torch.optim.SGD([*self.body.parameters(), *self.head.parameters()], 0.1)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, self.trainer.estimated_stepping_batches)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


class Fills(Net):
    """Some clients fill buffers that are None, one alone a flag; the loss weighs by what the round before logged."""

    def __init__(self):
        super().__init__()
        for name in ("centre", "seen", "flag"):
            self.register_buffer(name, None)

    def training_step(self, batch, batch_idx):
        if len(batch[0]) != SIZES[0]:
            self.centre = batch[0].mean(0) if self.centre is None else self.centre.lerp(batch[0].mean(0), 0.1)
        if len(batch[0]) == SIZES[1]:
            self.flag = torch.ones((), dtype=torch.bool, device=self.device)
        self.seen = torch.ones((), dtype=torch.long, device=self.device) if self.seen is None else self.seen + 1
        loss = super().training_step(batch, batch_idx)
        self.log("mean", loss, on_step=True, on_epoch=True)
        return loss * (1 + 0.01 * float(self.trainer.callback_metrics.get("mean", 0.0)))


def points():
    draws = torch.Generator().manual_seed(5)
    owners = torch.arange(len(SIZES)).repeat_interleave(torch.tensor(SIZES))
    inputs = torch.randn(sum(SIZES), 4, generator=draws) + owners[:, None]
    return Examples(inputs, torch.zeros_like(owners), "points", (), owners, tuple("abcde"))


def pictures():
    draws = torch.Generator().manual_seed(6)
    owners = torch.arange(3).repeat_interleave(torch.tensor([4, 13, 7]))
    inputs = torch.randint(0, 256, (24, 1, 8, 8), generator=draws, dtype=torch.uint8)
    return Examples(inputs, torch.zeros_like(owners), "pictures", (), owners, tuple("abc"))


def gan(**options):
    return WGANGP(SmallGenerator(width=4), SmallCritic(width=4), n_critic=2, ema_decay=0.9, **options)


def ddpm():
    return DDPM(UNet(image_size=8, channels=1, widths=[8], layers=1, attention=[]), lr=1e-3)


def vae():
    network = AutoencoderKL(image_size=8, channels=1, latent_channels=2, widths=[4, 4], layers=1, attention=False)
    return VAE(network, lr=1e-3)


def latent_flow():
    """Of latents that each turn draws from the posteriors of a frozen autoencoder, by adapters on a frozen network."""
    unet = UNet(image_size=4, channels=2, widths=[8], layers=1, attention=[])
    return FlowMatching(unet, coupling="optimal-transport", lr=1e-3, autoencoder=vae(), lora=LoRA(rank=2))


CONFIGURATIONS = {
    # name: (model, strategy's options)
    "sgd": (Net, {}),
    "adam": (lambda: Net("adam"), {"cohort_size": 3}),
    "adam-average": (lambda: Net("adam"), {"optimizer_state": "average", "cohort_size": 3}),
    "personal": (lambda: Net("adam"), {"personal": ["head.*"], "optimizer_state": "keep"}),
    "scaffold": (Net, {"client_algorithm": Scaffold(), "cohort_size": 4}),
    "ditto": (Net, {"client_algorithm": Ditto(0.5), "cohort_size": 4}),
    "fedrep": (Net, {"client_algorithm": FedRep(2), "personal": ["head.*"], "cohort_size": 4}),
    "median": (Net, {"aggregator": Median()}),
    "trimmed": (Net, {"aggregator": TrimmedMean(0.2)}),
    "krum": (Net, {"aggregator": Krum(bad=1), "client_algorithm": FedProx(mu=0.5)}),
    "clipped": (lambda: Net("adam"), {"aggregator": NormClipping(0.1), "optimizer_state": "keep", "cohort_size": 3}),
    "private": (Net, {"aggregator": PrivateMean(0.5, noise_multiplier=0.1), "client_weights": "uniform"}),
    "fair": (Net, {"aggregator": QFedAvg(1.0, lr=0.1), "cohort_size": 4}),
    "by size": (Net, {"sampler": SizeSampler(), "client_weights": "uniform", "cohort_size": 4}),
    "shifts": (Net, {"sampler": AvailabilitySampler(Shifts(period=5, on=3, every=2)), "personal": ["head.*"]}),
    "nobody": (Net, {"sampler": AvailabilitySampler(lambda client, round: round == 2 * (client % 2))}),
    "few": (Net, {"cohort_size": 1}),
    "fails": (Hooked, {}),
    "gan": (gan, {"optimizer_state": "average"}),
    "gan-server": (lambda: gan(generator_trained_by="server"), {}),
    "ddpm": (ddpm, {}),
    "vae": (vae, {}),
    "latent-flow": (latent_flow, {}),
    "stateful": (Stateful, {}),
    "continuing": (Continuing, {"optimizer_state": "average"}),
    "fills": (Fills, {"server_optimizer": lambda p: FedAdam(p, lr=0.01)}),
    "sparse": (Net, {"compression": TopK(0.2), "cohort_size": 4}),
    "low-rank": (Net, {"compression": PowerSGD(1), "cohort_size": 3}),
}
NETWORKS = ("ddpm", "vae", "latent-flow")  # their rounds are the longest, and the third shows nothing new
# What three processes show and two do not: a process without a client in a round, one that alone has what others must
# hear of, and state of clients, updates and losses gathered from more than one other. Rules that differ in what one
# process does with its clients, and networks, add nothing: they are on two.
SPREAD = (
    *("sgd", "adam", "personal", "fails", "few", "nobody", "shifts", "median", "fair"),
    *("scaffold", "ditto", "sparse", "stateful", "fills"),
)
PROCESSES = {name: 3 if name in SPREAD else 2 for name in CONFIGURATIONS}


def rounds_of(name):
    return 2 if name in NETWORKS else ROUNDS


def train(name, devices, folder, resume=None, callbacks=(), num_nodes=1):
    """One configuration's training; returns module, strategy and trainer."""
    make, options = CONFIGURATIONS[name]
    L.seed_everything(0, verbose=False)
    module = make()
    examples = pictures() if name in ("gan", "gan-server", *NETWORKS) else points()
    data = FederatedDataModule(examples, Natural(), 100, held_out=0.0, seed=1)
    on_gpus = places_and_names()[0] == "cuda"
    backend = "nccl" if on_gpus else "gloo"
    strategy = FedAvgStrategy(communication_interval=4, seed=2, process_group_backend=backend, **options)
    kept = {"callbacks": [RoundCheckpoint(folder, every_n_rounds=1), *callbacks], "enable_checkpointing": True}
    places = {"devices": devices, "num_nodes": num_nodes, "default_root_dir": folder}
    places["accelerator"] = "gpu" if on_gpus else "cpu"
    trainer = quiet_trainer(rounds_of(name), strategy=strategy, **kept, **places)
    trainer.fit(module, data, ckpt_path=resume)
    return module, strategy, trainer


def places_and_names():
    """Where processes are, and the configurations that are asked for; none for all."""
    place, *names = os.environ.get(SCRIPT_ON, "cpu").split()
    return place, names


def main(devices, folder, resume_from=None, checkpoint="round=00000.ckpt", *names):
    """All configurations that so many processes train, or some of which another folder has runs, from a checkpoint."""
    resumed = [] if resume_from is None else names
    own = [name for name in CONFIGURATIONS if devices in (1, PROCESSES[name])]
    for name in resumed or places_and_names()[1] or own:
        start = Path(resume_from) / name / checkpoint if resumed else None
        ranks.dist = counted = Counted()
        broadcasts = Broadcasts()
        module, strategy, trainer = train(name, devices, Path(folder) / name, start, [broadcasts])
        memory, local = strategy.round.memory, strategy.round.local
        held = ranks.Ranks().gather((memory.completed, sorted(memory.personal), sorted(local.clients)))
        if trainer.is_global_zero:
            saved = torch.load(Path(folder) / name / "last.ckpt", weights_only=True)
            found = {"weights": dict(module.state_dict()), "clients": saved["fedavg"], "left_out": strategy.left_out}
            found["sums"], found["broadcasts"], found["held"] = counted.sums, broadcasts.count, held
            found["metrics"] = {key: float(value) for key, value in trainer.callback_metrics.items()}
            torch.save(found, Path(folder) / f"{name}.pt")
        trainer.strategy.barrier()


def run(arguments):
    """What the script's arguments ask for."""
    first, folder, *rest = arguments
    if first == "dies":
        death = Dies(int(rest[0]), signal.Signals[rest[1]])
        train("personal", 2, Path(folder) / "personal", callbacks=[death])
    elif first == "scored":
        scores = {"num_images": 510, "embeddings": ["pixels"], "report": False, "page": False, "grid": 0}
        scoring = FederatedEvaluation(every_n_rounds=1, dirpath=folder, **scores)
        resume = Path(folder) / "last.ckpt"
        deaths = [DiesScoring(int(rank)) for rank in rest]
        train("gan", 2, folder, resume if resume.exists() else None, [scoring, *deaths])
    elif first == "node":
        module, _, trainer = train("adam-average", 1, Path(folder) / "adam-average", num_nodes=2)
        torch.save(module.state_dict(), Path(folder) / f"{trainer.global_rank}.pt")
    else:
        main(int(first), folder, *rest)


if __name__ == "__main__":
    run(sys.argv[1:])
