"""Flower's minimal app of the same training: what its templates do, with a plain loop of WGAN-GP in place of theirs.

It is copied into an app of its own, and imports nothing of the kit, nor Lightning: the networks, the images' folder,
two iterations of the critic and one of the generator by Adam, whose moments travel and are averaged with the weights.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from PIL import Image
from torch import Tensor, nn

WIDTH, LATENT, BATCH, ITERATIONS, LR, BETAS, PENALTY = 128, 32, 32, 2, 1e-3, (0.0, 0.99), 10.0
FIRST, SECOND = "exp_avg", "exp_avg_sq"
Optimizers = dict[str, torch.optim.Adam]  # by the name of the network

client = ClientApp()
server = ServerApp()


def make_networks() -> nn.ModuleDict:
    """The quickstart's generator and critic."""
    generator = nn.Sequential(
        nn.Linear(LATENT, WIDTH, bias=False), nn.BatchNorm1d(WIDTH), nn.ReLU(),
        nn.Linear(WIDTH, WIDTH, bias=False), nn.BatchNorm1d(WIDTH), nn.ReLU(),
        nn.Linear(WIDTH, 64), nn.Tanh(), nn.Unflatten(1, (1, 8, 8)),
    )  # fmt: skip
    critic = nn.Sequential(
        nn.Flatten(), nn.Linear(64, WIDTH), nn.LeakyReLU(0.2), nn.Linear(WIDTH, WIDTH), nn.LeakyReLU(0.2),
        nn.Linear(WIDTH, 1),
    )  # fmt: skip
    return nn.ModuleDict({"generator": generator, "critic": critic})


def state_of(networks: nn.ModuleDict, moments: dict[str, Tensor]) -> dict[str, Tensor]:
    """Everything that travels, by name, as floats."""
    return {name: tensor.detach().float() for name, tensor in networks.state_dict().items()} | moments


def no_moments(networks: nn.ModuleDict) -> dict[str, Tensor]:
    """The moments before the first step."""
    named = dict(networks.named_parameters())
    return {f"{kind}/{name}": torch.zeros_like(tensor) for kind in (FIRST, SECOND) for name, tensor in named.items()}


def read_folder(folder: Path) -> Tensor:
    """All images below a folder, float [N, 1, H, W] in [-1, 1]."""
    images = [np.asarray(Image.open(path).convert("L")) for path in sorted(folder.rglob("*.png"))]
    return torch.from_numpy(np.stack(images))[:, None].float() / 127.5 - 1


def critic_loss(networks: nn.ModuleDict, real: Tensor) -> Tensor:
    """WGAN-GP's."""
    critic = networks["critic"]
    with torch.no_grad():
        fake = networks["generator"](torch.randn(len(real), LATENT))
    on_real, on_fake = critic(torch.cat([real, fake])).chunk(2)
    points = torch.lerp(real, fake, torch.rand(len(real), 1, 1, 1)).requires_grad_()
    (slopes,) = torch.autograd.grad(critic(points).sum(), points, create_graph=True)
    penalty: Tensor = (slopes.flatten(1).norm(dim=1) - 1).square().mean()
    return PENALTY * penalty - on_real.mean() + on_fake.mean()


def generator_loss(networks: nn.ModuleDict) -> Tensor:
    """The generator's part of it."""
    loss: Tensor = -networks["critic"](networks["generator"](torch.randn(BATCH, LATENT))).mean()
    return loss


def take_turn(networks: nn.ModuleDict, optimizers: Optimizers, batches: list[Tensor]) -> None:
    """A client's local steps, of a batch of images each."""
    for real in batches:
        step(networks["critic"], optimizers["critic"], critic_loss(networks, real))
    step(networks["generator"], optimizers["generator"], generator_loss(networks))


def step(network: nn.Module, optimizer: torch.optim.Adam, loss: Tensor) -> None:
    """One step of a network."""
    optimizer.zero_grad()
    loss.backward(inputs=list(network.parameters()))
    optimizer.step()


def train_on(
    state: dict[str, Tensor],
    folder: Path,
    take_turn: Callable[[nn.ModuleDict, Optimizers, list[Tensor]], None] = take_turn,
) -> tuple[dict[str, Tensor], int]:
    """What the state becomes by a turn on a folder's images, and how many these are."""
    torch.set_num_threads(1)
    networks, images = make_networks(), read_folder(folder)
    networks.load_state_dict({name: state[name] for name in networks.state_dict()})
    optimizers = {
        name: torch.optim.Adam(network.parameters(), lr=LR, betas=BETAS) for name, network in networks.items()
    }
    named = {f"{part}.{name}": p for part, network in networks.items() for name, p in network.named_parameters()}
    for name, parameter in named.items():
        own = optimizers[name.split(".")[0]].state[parameter]
        own |= {kind: state[f"{kind}/{name}"].clone() for kind in (FIRST, SECOND)} | {"step": torch.tensor(0.0)}
    order = torch.randperm(len(images))[: ITERATIONS * BATCH]
    take_turn(networks, optimizers, list(images[order].split(BATCH)))
    moments = {
        f"{kind}/{name}": optimizers[name.split(".")[0]].state[parameter][kind]
        for kind in (FIRST, SECOND)
        for name, parameter in named.items()
    }
    return state_of(networks, moments), len(images)


def folder_of(context: Context) -> Path:
    """The client's images; a simulated one has those of its number."""
    own = context.node_config
    if "data-path" in own:
        return Path(str(own["data-path"]))
    return sorted(Path(str(context.run_config["data"])).iterdir())[int(own["partition-id"])]


def reply(message: Message, found: dict[str, Tensor], count: int) -> Message:
    """A client's answer in a round."""
    content: dict[str, Any] = {"arrays": ArrayRecord(found), "metrics": MetricRecord({"num-examples": count})}
    return Message(RecordDict(content), reply_to=message)


@client.train()
def train(message: Message, context: Context) -> Message:
    """Takes a turn."""
    return reply(message, *train_on(message.content["arrays"].to_torch_state_dict(), folder_of(context)))


@server.main()
def serve(grid: Grid, context: Context) -> None:
    """All rounds; their ends are written down."""
    stamps = Path(str(context.run_config["stamps"]))
    clients, cohort = int(context.run_config["clients"]), int(context.run_config["cohort"])
    networks = make_networks()

    def note(round: int, arrays: ArrayRecord) -> None:
        with stamps.open("a") as file:
            file.write(f"{time.time()}\n")

    nodes = {"min_train_nodes": cohort, "min_evaluate_nodes": 0, "min_available_nodes": clients}
    FedAvg(fraction_train=cohort / clients, fraction_evaluate=0.0, **nodes).start(
        grid=grid,
        initial_arrays=ArrayRecord(state_of(networks, no_moments(networks))),
        num_rounds=int(context.run_config["rounds"]),
        evaluate_fn=note,
    )
