# ---
# jupyter:
#   jupytext: {text_representation: {extension: .py, format_name: percent}}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
# # A generator fine-tuned on distributed MMD²
#
# A server adapts its generator of ten digits to clients that hold only 0, 3, 6 and 9, and that keep their images.

# %%
import logging
import warnings

warnings.filterwarnings("ignore")

import lightning as L
import torch

import fedgen
from fedgen.losses import DistributedLoss, EmbeddedLoss, MMD2Loss
from fedgen.models import FineTuning
from fedgen.models.networks import SmallCritic, SmallGenerator

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
torch.set_num_threads(1)
quiet = {
    "accelerator": "cpu",
    "logger": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "enable_checkpointing": False,
}

# %% [markdown]
# First the server trains a small WGAN-GP on its own digits (a plain `Trainer` pools the clients).

# %%
L.seed_everything(0)
everything = fedgen.FederatedDataModule(
    fedgen.Digits(), fedgen.ByClass(), batch_size=32
)
gan = fedgen.WGANGP(
    SmallGenerator(), SmallCritic(), n_critic=2, lr=1e-3, betas=(0.0, 0.99)
)
L.Trainer(max_epochs=20, **quiet).fit(gan, everything)

# %% [markdown]
# Each client holds one digit. The server sends features of each generated batch. `DistributedLoss` receives from the
# clients the value of KID (MMD² with a cubic kernel) to all of them together, and its gradient in those features.

# %%
digits = fedgen.Digits().read("train")
own = {
    f"digit {digit}": digits.subset((digits.labels == digit).nonzero()[:, 0])
    for digit in (0, 3, 6, 9)
}
clients = fedgen.FederatedDataModule(own, batch_size=32, iterations=50)
loss = EmbeddedLoss(DistributedLoss(MMD2Loss()), embeddings=["pixels"])
tuned = FineTuning(gan.generator, generator_losses=[loss], batch=200, lr=5e-4)


def kid(model):
    records = fedgen.evaluate(
        model, clients, embeddings=["pixels"], num_images=1000, scores=["kid"]
    )
    (found,) = [
        record
        for record in records
        if record.name == "kid_all" and record.split == "train" and record.round == 0
    ]
    return f"KID-all to the clients {found.value:.4f} ± {found.standard_error:.4f}"


print("before:", kid(tuned))
L.Trainer(max_epochs=4, **quiet).fit(tuned, clients)
print("after: ", kid(tuned))

# %% [markdown]
# The traffic of the whole training:

# %%
print(loss.losses[0].traffic)
