"""Numbers that the official implementation produced on random weights, and our networks with those weights.

Set A is in `reference/`; set B, larger and conditional, is used where the folder `shared` lies beside the repository.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from fedgen.models.stylegan2.discriminator import StyleGAN2Discriminator
from fedgen.models.stylegan2.generator import StyleGAN2Generator

OWN = Path(__file__).parent / "reference"
FULL = Path(__file__).parents[4] / "shared" / "stylegan2_ref"
OUTPUTS = 2e-5
"""Tolerance for outputs, times the largest absolute value of the reference."""


def deviation(ours: Tensor, reference: Tensor) -> float:
    """max|a - b| / max|b|, after our shape was brought to the reference's."""
    return float((ours.detach().reshape(reference.shape) - reference).abs().max() / reference.abs().max())


def network_arguments(sides: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arguments of our generator and discriminator from the official ones."""
    g, d = sides["G_init"], sides["D_init"]
    sizes = {name: g["synthesis_kwargs"][name] for name in ("channel_base", "channel_max")}
    shared = {"image_size": g["img_resolution"], "channels": g["img_channels"], "num_classes": g["c_dim"] or None}
    generator = {"latent_dim": g["z_dim"], "style_dim": g["w_dim"], "mapping_layers": g["mapping_kwargs"]["num_layers"]}
    return {**shared, **sizes, **generator}, {
        **shared,
        **sizes,
        "group_size": d["epilogue_kwargs"]["mbstd_group_size"],
        "group_channels": d["epilogue_kwargs"]["mbstd_num_channels"],
        "mapping_layers": d["mapping_kwargs"].get("num_layers", 8),
    }


class Case:
    """A set of reference arrays: `case["G/img_const_psi1"]`, and our networks with its weights."""

    def __init__(self, name: str) -> None:
        folder = OWN if name == "A" else FULL
        index = json.loads((folder / "index.json").read_text())
        self.settings = index["A"] if name == "A" else index["configs"][name]
        self.arrays = load_file(folder / f"{name}_io.safetensors")
        self.weights = {key: value.float() for key, value in load_file(folder / f"{name}_weights.safetensors").items()}
        self.cutoff = self.settings["truncation_cutoff_used"]
        self.labels = self.arrays.get("in/c")

    def __getitem__(self, key: str) -> Tensor:
        return self.arrays[key]

    def load(self, network: torch.nn.Module, side: str) -> torch.nn.Module:
        """The network with the reference's weights, in eval mode."""
        state = {key[2:]: value for key, value in self.weights.items() if key.startswith(side)}
        network.load_state_dict(state)
        return network.eval()

    def generator(self, **options) -> StyleGAN2Generator:
        return self.load(StyleGAN2Generator(**(network_arguments(self.settings)[0] | options)), "G/")

    def discriminator(self, **options) -> StyleGAN2Discriminator:
        return self.load(StyleGAN2Discriminator(**(network_arguments(self.settings)[1] | options)), "D/")


@pytest.fixture(scope="session", params=["A", "B"])
def case(request):
    if request.param == "B" and not FULL.is_dir():
        pytest.skip("the larger reference set is not beside the repository")
    return Case(request.param)


@pytest.fixture(scope="session")
def case_a():
    return Case("A")


@pytest.fixture(scope="session")
def reference_index():
    return json.loads((OWN / "index.json").read_text())
