# ---
# jupyter:
#   jupytext: {text_representation: {extension: .py, format_name: percent}}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
# # Your own module and data, federated
#
# Train a plain Lightning module and a torch `Dataset` over ten clients. This takes half a minute on a CPU.

# %%
import logging
import warnings

warnings.filterwarnings("ignore")

import lightning as L
import torch
from sklearn.datasets import load_digits
from torch import nn

import fedgen

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
torch.set_num_threads(1)
L.seed_everything(0)


class Digits(torch.utils.data.Dataset):
    """scikit-learn's 1,797 digits, floats [1, 8, 8] in [-1, 1]."""

    def __init__(self):
        bundle = load_digits()
        self.images = torch.tensor(bundle.images[:, None] / 8 - 1).float()
        self.targets = torch.tensor(bundle.target)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, position):
        return self.images[position], self.targets[position]


class VAE(L.LightningModule):
    def __init__(self, latent=8):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 2 * latent)
        )
        self.decoder = nn.Sequential(
            nn.Linear(latent, 128),
            nn.ReLU(),
            nn.Linear(128, 64),
            nn.Tanh(),
            nn.Unflatten(1, (1, 8, 8)),
        )

    def training_step(self, batch, batch_idx):
        images, _ = batch
        mean, log_variance = self.encoder(images).chunk(2, dim=1)
        latents = mean + torch.randn_like(mean) * (log_variance / 2).exp()
        error = (self.decoder(latents) - images).square().sum((1, 2, 3)).mean()
        divergence = (
            0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(1).mean()
        )
        loss = error + 0.5 * divergence
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 1e-3)

    @torch.no_grad()
    def sample(
        self, num_images, generator=None
    ):  # what is scored: floats [N, C, H, W] in [-1, 1]
        latents = torch.randn(
            num_images, self.decoder[0].in_features, generator=generator
        )
        return self.decoder(latents.to(self.device)).cpu()


# %% [markdown]
# `alpha` is the sum of the Dirichlet distribution's parameters over classes, so 0.3 gives most clients one or two labels. A round
# is a Lightning epoch: five clients train for twenty local iterations. Every ten rounds the generator is scored against the
# clients, `avg` and `all`.

# %%
data = fedgen.FederatedDataModule(
    Digits(), fedgen.Dirichlet(num_clients=10, alpha=0.3), batch_size=32
)
evaluation = fedgen.FederatedEvaluation(
    every_n_rounds=10, embeddings=["pixels"], num_images=1000
)
trainer = L.Trainer(
    strategy=fedgen.FedAvgStrategy(communication_interval=20, cohort_size=5),
    callbacks=[
        evaluation,
        fedgen.RoundCheckpoint(),
        fedgen.callbacks.RoundProgressBar(),
    ],
    max_epochs=30,
    accelerator="cpu",
    logger=False,
    enable_model_summary=False,
    default_root_dir="own_vae",
)
model = VAE()
trainer.fit(model, data)

# %% [markdown]
# The best checkpoint by each score:

# %%
for score in ("fid_avg", "fid_all", "kid_all"):
    best = fedgen.select("own_vae", by=score)[0]
    print(score, best.round, round(best.value, 4), best.checkpoint)

# %% [markdown]
# Generated digits of the last round:

# %%
import matplotlib.pyplot as plt
from torchvision.utils import make_grid

grid = make_grid(
    (model.sample(40, torch.Generator().manual_seed(0)) + 1) / 2, nrow=10, pad_value=1
)
figure, axes = plt.subplots(figsize=(7, 3))
axes.imshow(grid.permute(1, 2, 0))
_ = axes.axis("off")

# %% [markdown]
# Every run writes `curves.png`. Dashed lines are floors, the scores of real held-out digits.

# %%
from IPython.display import Image

Image("own_vae/curves.png", width=650)

# %% [markdown]
# As a control, train the module on the pooled data with Lightning's own strategy.

# %%
L.seed_everything(0)
control = L.Trainer(
    max_epochs=30,
    accelerator="cpu",
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    limit_train_batches=20,
    enable_checkpointing=False,
    default_root_dir="pooled_vae",
)
pooled = VAE()
control.fit(pooled, data)
for name, each in (("federated", model), ("pooled", pooled)):
    records = fedgen.evaluate(
        each, data, embeddings=["pixels"], num_images=1000, scores=["kid"]
    )
    print(
        name,
        {
            record.name: round(record.value, 4)
            for record in records
            if record.split == "train" and record.aggregate
        },
    )
