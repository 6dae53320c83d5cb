"""Networks that take labels."""

import pytest
import torch

from fedgen.models.networks import SAGANCritic, SAGANGenerator, SNGANCritic, SNGANGenerator
from fedgen.models.networks.pair_layers import ConditionalBatchNorm
from fedgen.models.networks.resnets import ProjectionHead

PAIRS = [(SNGANGenerator, SNGANCritic, {}), (SAGANGenerator, SAGANCritic, {"attention_size": 4})]


@pytest.mark.parametrize(("generator_class", "critic_class", "extra"), PAIRS)
@pytest.mark.parametrize("size", [8, 32])
def test_images_and_scores_depend_on_labels(generator_class, critic_class, extra, size):
    torch.manual_seed(0)
    generator = generator_class(size, 1, 5, 8, num_classes=3, **extra).eval()
    critic = critic_class(size, 1, 8, num_classes=3, **extra).eval()
    for norm in generator.modules():
        if isinstance(norm, ConditionalBatchNorm):  # as training does: at first all classes are alike
            torch.nn.init.normal_(norm.gain.weight, 1.0, 0.5)
    latents, labels = torch.randn(2, 5), torch.tensor([0, 2])
    with torch.no_grad():
        images = generator(latents, labels)
        assert images.shape == (2, 1, size, size)
        other = generator(latents, torch.tensor([0, 1]))
        assert torch.equal(images[0], other[0])
        assert not torch.allclose(images[1], other[1])
        scores = critic(images, labels)
        assert scores.shape == (2,)
        changed = critic(images, torch.tensor([0, 1]))
        assert scores[0] == changed[0]
        assert scores[1] != changed[1]


@pytest.mark.parametrize(("generator_class", "critic_class", "extra"), PAIRS)
def test_labels_are_needed_with_classes_and_refused_without(generator_class, critic_class, extra):
    labels = torch.zeros(1, dtype=torch.int64)
    for classes, given, message in [(3, (), "has 3 classes and needs labels"), (None, (labels,), "takes no labels")]:
        with pytest.raises(ValueError, match=message):
            generator_class(8, 1, 5, 8, num_classes=classes, **extra)(torch.zeros(1, 5), *given)
        with pytest.raises(ValueError, match=message):
            critic_class(8, 1, 8, num_classes=classes, **extra)(torch.zeros(1, 1, 8, 8), *given)


def test_conditional_batch_norm_scales_and_shifts_by_class():
    norm = ConditionalBatchNorm(1, 2)
    norm.gain.weight.data, norm.bias.weight.data = torch.tensor([[1.0], [3.0]]), torch.tensor([[0.0], [10.0]])
    x = torch.tensor([-1.0, 1.0]).view(2, 1, 1, 1)  # mean 0, variance 1
    assert norm(x, torch.tensor([0, 1])).flatten().tolist() == pytest.approx([-1.0, 13.0], abs=1e-3)
    plain = torch.nn.BatchNorm2d(1)
    plain(x)
    assert torch.equal(norm.norm.running_var, plain.running_var)


def test_the_projection_head_by_hand():
    head = ProjectionHead(2, 3)
    head.score.weight.data, head.score.bias.data = torch.tensor([[1.0, 2.0]]), torch.tensor([0.5])
    head.embedding.weight.data = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, -1.0]])
    maps = torch.tensor([[[1.0, -9.0], [2.0, 0.0]], [[4.0, 1.0], [-1.0, 0.0]]]).view(1, 2, 2, 2)
    # sums of ReLU over positions: 3 and 5; linear: 3 + 2 * 5 + 0.5
    scores = [head(maps, torch.tensor([label])).item() for label in range(3)]
    assert scores == [13.5, 16.5, 8.5]
