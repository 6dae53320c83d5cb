"""The minimal app with a fit of Lightning's Trainer around each turn's steps, as in Flower's example of Lightning.

What it takes more than the minimal app is Lightning's, which a client of the kit cannot take less than.
"""

import lightning.pytorch as pl
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from .minimal import Optimizers, critic_loss, folder_of, generator_loss, reply, step, train_on

client = ClientApp()


class Turn(pl.LightningModule):
    """A turn of so many batches; the generator's step is behind the last one."""

    def __init__(self, networks: nn.ModuleDict, optimizers: Optimizers, batches: int) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.networks, self.made, self.batches = networks, optimizers, batches

    def configure_optimizers(self) -> list[Optimizer]:
        return [self.made["critic"], self.made["generator"]]

    def training_step(self, batch: Tensor, batch_idx: int) -> None:
        critic, generator = self.optimizers()
        step(self.networks["critic"], critic, critic_loss(self.networks, batch))
        if batch_idx + 1 == self.batches:
            step(self.networks["generator"], generator, generator_loss(self.networks))


def fit(networks: nn.ModuleDict, optimizers: Optimizers, batches: list[Tensor]) -> None:
    """The minimal app's local steps, in a fit."""
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    trainer = pl.Trainer(max_epochs=1, accelerator="cpu", devices=1, **quiet)
    trainer.fit(Turn(networks, optimizers, len(batches)), DataLoader(batches, batch_size=None))


@client.train()
def train(message: Message, context: Context) -> Message:
    """Takes a turn."""
    return reply(message, *train_on(message.content["arrays"].to_torch_state_dict(), folder_of(context), fit))
