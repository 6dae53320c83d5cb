"""The UNet of diffusion models, on diffusers' UNet2DModel."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedgen.extras import need
from fedgen.models.networks.network import Network

# What Ho et al. 2020 (arXiv 2006.11239) do where diffusers' own defaults differ.
PAPER = {"downsample_padding": 0, "flip_sin_to_cos": False, "freq_shift": 1, "norm_eps": 1e-6}

Normalisation = Literal["group", "batch"]


class UNet(Network):
    """Predictions [N, C, H, W] of noisy images [N, C, H, W] at timesteps int64 [N], of classes [N] if it has some.

    The defaults are the network of Ho et al. 2020 (arXiv 2006.11239, appendix B) for CIFAR-10, of 35.7 million
    parameters, but for its dropout of 0.1; widths of 16 and 32 train on two CPU cores.

    Args:
        image_size: pixels a side, a multiple of `patch` times a 2 for every width beyond the first.
        channels: 1 grey, 3 colour.
        widths: feature maps at a patch's size, twice that, four times, ...
        layers: residual blocks at each size.
        attention: sides, in patches, at which every block is followed by self-attention; the middle has it anyway.
        dropout: probability inside the residual blocks.
        num_classes: labels run from 0 to num_classes - 1; unconditional by default.
        null_label: whether a label `num_classes` stands for "any class", which classifier-free guidance needs.
        options: further arguments of UNet2DModel, which win over all the above but the labels'.
        patch: side of the squares of pixels that are one position with as many channels to the inner network
            (space-to-depth; Hoogeboom et al. 2023, arXiv 2301.11093): 2 makes a step about four times as fast.
        normalisation: "group", or "batch" for BatchNorm in its place, which trains by the moments of a client's batch.

    Raises:
        ValueError: for sizes that do not halve, attention at a side that does not occur, or an unknown normalisation.
    """

    def __init__(
        self,
        image_size: int = 32,
        channels: int = 3,
        widths: Sequence[int] = (128, 256, 256, 256),
        layers: int = 2,
        attention: Sequence[int] = (16,),
        dropout: float = 0.0,
        num_classes: int | None = None,
        null_label: bool = True,
        options: dict[str, Any] | None = None,
        patch: int = 1,
        normalisation: Normalisation = "group",
    ) -> None:
        unet = need("diffusers", "diffusion", "UNet").UNet2DModel
        widths, attention = list(widths), list(attention)
        super().__init__(
            image_size=image_size,
            channels=channels,
            widths=widths,
            layers=layers,
            attention=attention,
            dropout=dropout,
            num_classes=num_classes,
            null_label=null_label,
            options=options,
            patch=patch,
            normalisation=normalisation,
        )
        config = {**PAPER, **_blocks(image_size, patch, widths, attention)}
        config |= {"layers_per_block": layers, "dropout": dropout, "sample_size": image_size // patch}
        config |= dict.fromkeys(("in_channels", "out_channels"), channels * patch**2)
        # at least four maps a group: normalising each map on its own would erase the timestep, which shifts whole maps
        config |= {"norm_num_groups": math.gcd(32, *(max(1, width // 4) for width in widths))}
        config |= {"attention_head_dim": None} | (options or {})
        if num_classes is not None:
            config["num_class_embeds"] = num_classes + null_label
        self.body: Any = _normalised(unet(**config), normalisation)
        self.patch = patch
        self.num_classes, self.null_label = num_classes, null_label and num_classes is not None
        size, maps = config["sample_size"], config["in_channels"]
        sides = size if isinstance(size, (list, tuple)) else (size, size)
        self.image_shape = (maps // patch**2, *(patch * side for side in sides))

    @classmethod
    def around(cls, config: Mapping[str, Any], num_classes: int | None = None) -> "UNet":
        """The network of a UNet2DModel's config, with new weights.

        Args:
            config: of the UNet2DModel, as in its config.json.
            num_classes: how many classes it knows; one row of its label embedding each, and maybe one more for "any".
                All rows are classes by default.
        """
        options = {key: value for key, value in config.items() if not key.startswith("_")}
        rows = options.pop("num_class_embeds", None)
        if num_classes is None:
            num_classes = rows
        size, widths = options["sample_size"], options["block_out_channels"]
        side = size if isinstance(size, int) else min(size)
        return cls(
            side,
            options["in_channels"],
            widths,
            attention=(),
            num_classes=num_classes,
            null_label=rows is not None and rows != num_classes,
            options=options,
        )

    def forward(self, images: Tensor, timesteps: Tensor, labels: Tensor | None = None) -> Tensor:
        """Labels are int64 [N]; without any, or `num_classes`, the prediction is for any class."""
        if labels is None and self.null_label:
            labels = timesteps.new_full((len(images),), self.num_classes, dtype=torch.int64)  # type: ignore[arg-type]
        if self.patch > 1:
            images = F.pixel_unshuffle(images, self.patch)
        found: Tensor = self.body(images, timesteps, class_labels=labels, return_dict=False)[0]
        return F.pixel_shuffle(found, self.patch) if self.patch > 1 else found

    def save_memory(self) -> None:
        """From now on training keeps blocks' inputs only and computes the rest again in the backward pass."""
        self.body.enable_gradient_checkpointing()


def _normalised(body: nn.Module, normalisation: Normalisation) -> nn.Module:
    """Return the network as it is, or with BatchNorm in place of all GroupNorm."""
    if normalisation not in get_args(Normalisation):
        raise ValueError(f"normalisation={normalisation!r}: give one of {', '.join(get_args(Normalisation))}")
    if normalisation == "batch":
        groups = {name: part for name, part in body.named_modules() if isinstance(part, nn.GroupNorm)}
        for name, part in groups.items():  # attention has its positions in one dimension
            kind = nn.BatchNorm1d if name.endswith(".group_norm") else nn.BatchNorm2d
            body.set_submodule(name, kind(part.num_channels, part.eps))
    return body


def _blocks(image_size: int, patch: int, widths: Sequence[int], attention: Sequence[int]) -> dict[str, Any]:
    """UNet2DModel's arguments for the kinds and widths of its blocks."""
    if patch < 1 or image_size % patch:
        raise ValueError(f"patch={patch}: give a number of pixels that image_size={image_size} is a multiple of")
    halvings, side = len(widths) - 1, image_size // patch
    if not widths or side < 1 or side % 2**halvings:
        raise ValueError(
            f"image_size={image_size}{f' in patches of {patch}' if patch > 1 else ''} does not halve {halvings} times"
            f" for the {len(widths)} widths {list(widths)}; pad the data (pad_to), or give fewer widths"
        )
    sides = [side >> level for level in range(len(widths))]
    if unknown := sorted(set(attention) - set(sides)):
        raise ValueError(f"attention={unknown} are no sides of this network, which are {sides}")
    kinds = ["Attn" if side in attention else "" for side in sides]
    return {
        "block_out_channels": tuple(widths),
        "down_block_types": tuple(f"{kind}DownBlock2D" for kind in kinds),
        "up_block_types": tuple(f"{kind}UpBlock2D" for kind in reversed(kinds)),
    }
