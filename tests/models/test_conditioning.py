import torch
from torch import nn

from fedgen.models.adversarial import critic_function, generate, scores_batches
from fedgen.models.latent_generator import AtPositions
from fedgen.models.networks import DCGANCritic, SNGANGenerator


class Recording(nn.Module):
    """Scores every image by its label, and remembers what it was called with."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def forward(self, images, labels=None):
        self.seen.append((len(images), None if labels is None else labels.tolist()))
        return images.flatten(1).sum(1) if labels is None else labels.float()


def test_labels_are_those_of_each_batch():
    critic = Recording()
    score = critic_function(critic, 2, torch.tensor([5, 7]))
    assert score(torch.zeros(4, 1, 1, 1)).tolist() == [5.0, 7.0, 5.0, 7.0]
    assert score(torch.zeros(2, 1, 1, 1)).tolist() == [5.0, 7.0]
    assert critic.seen == [(4, [5, 7, 5, 7]), (2, [5, 7])]


def test_an_unconditional_critic_hears_of_no_labels():
    critic = Recording()
    assert critic_function(critic, 2, None)(torch.ones(4, 1, 1, 1)).tolist() == [1.0] * 4
    assert critic.seen == [(4, None)]


def test_batch_norm_sees_one_batch_after_another():
    torch.manual_seed(0)
    critic = DCGANCritic(8, 1, 4, batch_norm=True)
    assert not scores_batches(critic)  # at 8 pixels there is one convolution, and none behind it
    critic = DCGANCritic(16, 1, 4, batch_norm=True)
    assert scores_batches(critic)
    real, fake = torch.randn(3, 1, 16, 16), 5 * torch.randn(3, 1, 16, 16)
    scores = critic_function(critic, 3, None)(torch.cat([real, fake]))
    assert torch.equal(scores, torch.cat([critic(real), critic(fake)]))
    assert not torch.allclose(scores, critic(torch.cat([real, fake])))


def test_chunks_of_a_conditional_generator_have_their_latents_and_labels():
    torch.manual_seed(0)
    generator = SNGANGenerator(8, 1, 3, 4, num_classes=2).eval()
    nn.init.normal_(generator.blocks[0].norm1.gain.weight)
    latents, labels = torch.randn(5, 3), torch.tensor([0, 1, 1, 0, 1])
    at = AtPositions(generator, latents, labels)
    images = torch.cat([at(part) for part in torch.arange(5).split(2)])
    assert torch.allclose(images, generate(generator, latents, labels), atol=1e-6)
    assert {id(buffer) for buffer in at.buffers()} == {id(buffer) for buffer in generator.buffers()}
