"""GAN training against bare loops, and the price of FID as a loss, on one thread.

    python -m benchmarks.gan [--repeats 5]

A federated round of WGAN-GP's critic steps beside a plain PyTorch loop that ends with the same weights; a generator's
step with FID beside one without, less the embedding's own forward and backward. About two minutes.
"""

import argparse
import logging
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn

from benchmarks.report import report
from fedgen.clients import FederatedDataModule
from fedgen.clients.partitions import IID
from fedgen.data import Examples
from fedgen.federated import FedAvgStrategy
from fedgen.images import from_uint8
from fedgen.losses import AdaptiveWeight, EmbeddedLoss, FastFIDLoss
from fedgen.models import GAN, WGANGP, Hinge
from fedgen.models.networks import DCGANCritic, DCGANGenerator
from fedgen.seeds import generator, seed_all

CLIENTS, PER_CLIENT, BATCH, INTERVAL = 2, 320, 64, 5
NEVER = 10**9  # n_critic of which no iteration is a multiple
SECONDS = time.process_time  # of the one thread: other work on the machine does not count
LR, BETAS, PENALTY = 2e-4, (0.0, 0.9), 10.0


class Clock(L.Callback):
    """Time stamps at round ends."""

    def __init__(self) -> None:
        self.stamps: list[float] = []

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.stamps.append(SECONDS())


def make_examples(count: int = CLIENTS * PER_CLIENT) -> Examples:
    draws = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (count, 3, 32, 32), dtype=torch.uint8, generator=draws)
    return Examples(images, torch.zeros(count, dtype=torch.int64), "noise/train", ("noise",))


def make_pair() -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    return DCGANGenerator(32, 3, width=32), DCGANCritic(32, 3, width=32)


# ---- a round of critic steps ----


def run_strategy(examples: Examples, rounds: int) -> tuple[list[float], float]:
    module, clock = WGANGP(*make_pair(), penalty=PENALTY, n_critic=NEVER, lr=LR, betas=BETAS), Clock()
    data = FederatedDataModule(examples, IID(CLIENTS), batch_size=BATCH, held_out=0.0, seed=0)
    options: dict[str, Any] = {
        "logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False,
    }  # fmt: skip
    trainer = L.Trainer(
        strategy=FedAvgStrategy(INTERVAL, seed=0), accelerator="cpu", devices=1, max_epochs=rounds, callbacks=[clock],
        **options,
    )  # fmt: skip
    trainer.fit(module, data)
    return [b - a for a, b in pairwise(clock.stamps)], checksum(module.critic)


def critic_step(maker: nn.Module, critic: nn.Module, optimizer: torch.optim.Optimizer, real: Tensor) -> None:
    """One critic step of WGAN-GP as anybody would write it."""
    with torch.no_grad():
        fake = maker(torch.randn(len(real), 128))
    on_real, on_fake = critic(torch.cat([real, fake])).chunk(2)
    points = torch.lerp(real, fake, torch.rand(len(real), 1, 1, 1)).requires_grad_()
    (slopes,) = torch.autograd.grad(critic(points).sum(), points, create_graph=True)
    penalty = (slopes.flatten(1).norm(dim=1) - 1).square().mean()
    optimizer.zero_grad()
    (PENALTY * penalty - on_real.mean() + on_fake.mean()).backward()
    optimizer.step()


def run_bare(examples: Examples, rounds: int) -> tuple[list[float], float]:
    """The plain loop: copy the server's weights in, train the critic, add the weighted client's weights up."""
    maker, critic = make_pair()
    data = FederatedDataModule(examples, IID(CLIENTS), batch_size=BATCH, held_out=0.0, seed=0)
    live = [t for n in (maker, critic) for t in n.state_dict(keep_vars=True).values() if t.is_floating_point()]
    server = [t.detach().clone() for t in live]
    mean = [torch.zeros_like(t) for t in server]
    stamps = []
    for round in range(rounds):
        for client, owner in enumerate(data.clients):
            with torch.no_grad():
                torch._foreach_copy_(live, server)
            optimizer = torch.optim.Adam(critic.parameters(), lr=LR, betas=BETAS)
            seed_all(0, "turn", round, client)
            order = torch.randperm(len(owner.train), generator=generator(0, "batches", round, client))
            for i in range(INTERVAL):
                chosen = owner.train[order[i * BATCH : (i + 1) * BATCH]]
                critic_step(maker, critic, optimizer, from_uint8(examples.inputs[chosen]))
            with torch.no_grad():
                if client == 0:
                    torch._foreach_zero_(mean)
                torch._foreach_add_(mean, live, alpha=1 / CLIENTS)
        server, mean = mean, server
        stamps.append(SECONDS())
    with torch.no_grad():
        torch._foreach_copy_(live, server)
    return [b - a for a, b in pairwise(stamps)], checksum(critic)


def checksum(module: nn.Module) -> float:
    return sum(float(p.detach().double().abs().sum()) for p in module.parameters())


def compare_rounds(repeats: int) -> bool:
    """Ours and the bare loop in turn; the ratio of the best rounds, and that both computed the same."""
    examples = make_examples()
    ours: list[float] = []
    bare: list[float] = []
    for _ in range(repeats):
        times, ours_sum = run_strategy(examples, 4)
        ours += times
        times, bare_sum = run_bare(examples, 4)
        bare += times
    if abs(ours_sum - bare_sum) > 1e-4 * bare_sum:
        raise AssertionError(f"the two loops disagree: {ours_sum} and {bare_sum}")
    steps = CLIENTS * INTERVAL
    report("WGAN-GP critic iteration, DCGAN of width 32 at 32x32, batch 64: bare loop", min(bare) / steps, "s")
    return report(
        "WGAN-GP critic iteration: ours over the bare loop (best rounds)", min(ours) / min(bare), "ratio", 1.05
    )


# ---- FID as a loss ----


class Alone(GAN):
    """A GAN whose steps run without a trainer."""

    def manual_backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        loss.backward(*args, **kwargs)


def best(works: Sequence[Callable[[], Any]], repeats: int) -> list[float]:
    """Seconds of the fastest of some calls of each, after one to warm up; in turns, as a machine's pace drifts."""
    for work in works:
        work()
    seconds: list[list[float]] = [[] for _ in works]
    for _ in range(repeats):
        for found, work in zip(seconds, works):
            start = SECONDS()
            work()
            found.append(SECONDS() - start)
    return list(map(min, seconds))


def generator_step(losses: list[EmbeddedLoss]) -> Callable[[], None]:
    module = Alone(*make_pair(), Hinge(), generator_losses=losses)
    optimizer = torch.optim.Adam(module.generator.parameters(), lr=LR, betas=BETAS)
    return lambda: module.generator_step(optimizer, BATCH, None)


def price_of_fid(repeats: int) -> bool:
    """What a joint FID loss adds to a generator's step beyond its embedding's own passes, over the step."""
    loss = EmbeddedLoss(FastFIDLoss(), ["efficientnet-lite0-32"], weight=AdaptiveWeight())
    loss.set_references([make_examples(2000).inputs])
    images = from_uint8(make_examples(BATCH).inputs).requires_grad_()
    pull = torch.randn(BATCH, loss.encode(images[:1]).shape[1])

    def embedding() -> None:
        torch.autograd.grad((loss.encode(images) * pull).sum(), images)

    # a difference of great times over a small one: a few calls would show their noise
    plain, scored, own = best([generator_step([]), generator_step([loss]), embedding], 6 * repeats)
    report("generator step, DCGAN of width 32 at 32x32, batch 64", plain, "s")
    report("generator step with FID in efficientnet-lite0-32 (D = 1280)", scored, "s")
    report("the embedding's own forward and backward", own, "s")
    return report("FID's share beyond the embedding, of the generator step", (scored - own) / plain - 1, "ratio", 0.25)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")
    within = [compare_rounds(repeats), price_of_fid(repeats)]
    return 0 if all(within) else 1


if __name__ == "__main__":
    sys.exit(main())
