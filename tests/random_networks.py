"""Random weights of the standard extractors, in the files that torch-fidelity reads, so that nothing is downloaded."""

import warnings
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch_fidelity.feature_extractor_clip import VisionTransformer
from torch_fidelity.feature_extractor_inceptionv3 import FeatureExtractorInceptionV3

from fedgen import seeds


class UnloadedInception(FeatureExtractorInceptionV3):
    """torch-fidelity's Inception that keeps its initial weights."""

    def load_state_dict(self, *args, **kwargs):
        return None


class RandomClip(nn.Module):
    """The smallest network whose archive torch-fidelity accepts as CLIP: 32 px, features [N, 32]."""

    def __init__(self) -> None:
        super().__init__()
        self.visual = VisionTransformer(32, 8, 64, 2, 1, 32)
        self.text_projection = nn.Parameter(torch.zeros(1, 32))

    def forward(self, images: Tensor) -> Tensor:
        return self.visual(images) + self.text_projection.sum()


def save_inception(folder: Path) -> Path:
    """A state dict of Inception: every convolution N(0, 2 / fan_in), without which all features are about 1e-8."""
    torch.save({}, folder / "empty.pth")
    with seeds.isolated():
        torch.manual_seed(0)
        network = UnloadedInception("inception-v3-compat", ["2048"], str(folder / "empty.pth"))
        for module in network.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.normal_(module.weight, std=(2 / module.weight[0].numel()) ** 0.5)
    torch.save(network.state_dict(), folder / "inception.pth")
    return folder / "inception.pth"


def save_clip(folder: Path) -> Path:
    """A state dict of half a megabyte; beside it the same as TorchScript (.pt), as OpenAI publishes CLIP."""
    with seeds.isolated(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # tracing is deprecated, and says so at each step
        torch.manual_seed(0)
        network = RandomClip().eval()
        torch.jit.trace(network, torch.zeros(1, 3, 32, 32)).save(folder / "clip.pt")
    save_file(dict(network.state_dict()), folder / "clip.safetensors")
    return folder / "clip.safetensors"
