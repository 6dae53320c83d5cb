"""Federated averaging of one's own module: `python examples/fedavg.py`, ten seconds on one core.

Ten clients hold one digit each. Nothing in the module knows of them: an epoch is a round, a batch is one client's turn.
"""

import lightning as L
import torch
from torch import nn

import fedgen

ROUNDS = 60


class VAE(L.LightningModule):
    """A variational autoencoder of 8x8 images in [-1, 1]."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 16))
        self.decoder = nn.Sequential(nn.Linear(8, 128), nn.ReLU(), nn.Linear(128, 64), nn.Tanh())

    def training_step(self, batch, batch_idx):
        images, _ = batch
        mean, log_variance = self.encoder(images).chunk(2, dim=1)
        latents = mean + torch.randn_like(mean) * (log_variance / 2).exp()
        error = (self.decoder(latents) - images.flatten(1)).square().sum(1)
        divergence = (mean.square() + log_variance.exp() - 1 - log_variance).sum(1) / 2
        return (error + 0.5 * divergence).mean()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 1e-3)

    @torch.no_grad()
    def sample(self, num_images, generator=None):
        """Return floats [num_images, 1, 8, 8] in [-1, 1]: all that scoring asks of a module."""
        latents = torch.randn(num_images, 8, generator=generator).to(self.device)
        return self.decoder(latents).view(-1, 1, 8, 8).cpu()


L.seed_everything(0)
data = fedgen.FederatedDataModule(fedgen.Digits(), fedgen.ByClass(), batch_size=32)
trainer = L.Trainer(
    strategy=fedgen.FedAvgStrategy(communication_interval=5, cohort_size=5),  # iterations of a turn, clients of a round
    callbacks=[
        fedgen.FederatedEvaluation(20, ["pixels"], num_images=1000),
        fedgen.RoundCheckpoint(),
        fedgen.callbacks.RoundProgressBar(),
    ],
    max_epochs=ROUNDS,
    accelerator="cpu",
    default_root_dir="checkpoints/example",
)
trainer.fit(VAE(), data, ckpt_path="last")  # started again, it goes on from the last checkpoint
for column in ("fid_avg", "fid_all"):
    best = fedgen.select("checkpoints/example", by=column)[0]
    print(f"{column} is best at round {best.round}: {best.value:.2f}")
