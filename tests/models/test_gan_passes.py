"""A GAN's generator step in one backward pass or in several: the same gradient, at the memory of the largest."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from fedgen.embeddings import load_embedding
from fedgen.losses import EmbeddedLoss
from fedgen.models import WGANGP
from fedgen.models.networks import SmallCritic
from tests.losses.live_bytes import LiveBytes
from tests.losses.simple import MeanLoss
from tests.losses.test_passes import Deep
from tests.trainers import quiet_trainer

IMAGES = 64


class Gallery(nn.Module):
    """As many images as latents, always the same ones, so that passes with latents of their own can be compared."""

    latent_dim = 2

    def __init__(self):
        super().__init__()
        draws = torch.Generator().manual_seed(0)
        self.pictures = nn.Parameter(torch.rand(IMAGES, 1, 4, 4, generator=draws) - 0.5)

    def forward(self, latents):
        return self.pictures[: len(latents)].tanh()


def step(tmp_path, separate):
    """Gradient of one generator step with two scores beside the critic's, and the most bytes alive in it."""
    torch.manual_seed(0)
    reals = torch.randint(0, 256, (IMAGES, 1, 4, 4), dtype=torch.uint8)
    losses = [
        EmbeddedLoss(MeanLoss(), [load_embedding(Deep(seed), name=f"deep-{seed}")], separate=separate)
        for seed in (1, 2)
    ]
    for loss in losses:
        loss.set_references([reals])
    module = WGANGP(Gallery(), SmallCritic(image_size=4, width=2), n_critic=1, generator_losses=losses)
    trainer = quiet_trainer(default_root_dir=tmp_path)
    loader = DataLoader(TensorDataset(torch.rand(IMAGES, 1, 4, 4), torch.zeros(IMAGES)), batch_size=IMAGES)
    torch.manual_seed(1)
    with LiveBytes() as memory:
        trainer.fit(module, loader)
    return module.generator.pictures.grad.clone(), memory.peak


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*does not have many workers")
def test_passes_of_their_own_add_up_to_one_pass_and_keep_one_graph_at_a_time(tmp_path):
    expected, together = step(tmp_path, separate=False)
    found, apart = step(tmp_path, separate=True)
    assert expected.abs().max() > 0
    assert (found - expected).norm() < 1e-5 * expected.norm()
    assert apart < 0.65 * together
