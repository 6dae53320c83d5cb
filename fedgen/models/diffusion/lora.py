"""Low-rank adapters (Hu et al. 2022, arXiv 2106.09685) on a network, by peft."""

import copy
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedgen.data.optional_attributes import optional
from fedgen.extras import need
from fedgen.io.files import read_json
from fedgen.io.tensor_files import read_safetensors, write_safetensors
from fedgen.models.optional_hooks import ImageNetwork
from fedgen.models.require import require

NAME, PREFIX = "default", "base_model.model."
WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"


@dataclass(frozen=True)
class LoRA:
    """Adapters of layers: W x becomes W x + (alpha / rank) B A x, of which A and B alone train.

    Federated averaging averages A and B each on its own, as is usual, and not the clients' products.

    Args:
        rank: of B A.
        alpha: its scale; the rank by default, which is a scale of 1.
        targets: ends of layers' names; by default the attentions' projections and the residual blocks' convolutions.

    Raises:
        ValueError: for a rank below 1, or no target.
    """

    rank: int = 4
    alpha: float | None = None
    targets: tuple[str, ...] = ("to_q", "to_k", "to_v", "to_out.0", "conv1", "conv2", "time_emb_proj")

    def __post_init__(self) -> None:
        object.__setattr__(self, "targets", tuple(self.targets))
        require(self.rank >= 1, f"rank={self.rank}: an adapter has at least rank 1")
        require(bool(self.targets), "targets=(): name at least one layer to adapt")

    @property
    def scale(self) -> float:
        """The factor of B A x."""
        return 1.0 if self.alpha is None else self.alpha / self.rank

    def config(self) -> Any:
        """The LoraConfig of peft."""
        alpha = self.rank if self.alpha is None else self.alpha
        return need("peft", "lora", "LoRA").LoraConfig(r=self.rank, lora_alpha=alpha, target_modules=list(self.targets))


def add_adapters(network: nn.Module, lora: LoRA) -> None:
    """Puts adapters into a network, which compute nothing yet, and freezes everything else."""
    need("peft", "lora", "LoRA").inject_adapter_in_model(lora.config(), network, NAME)


def merge_adapters(network: nn.Module) -> nn.Module:
    """A copy of the network whose layers hold their adapters' product, as if there had never been any."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    merged = copy.deepcopy(network)
    adapted = [(name, layer) for name, layer in merged.named_modules() if isinstance(layer, BaseTunerLayer)]
    for name, layer in adapted:
        layer.merge(safe_merge=True)
        merged.set_submodule(name, layer.get_base_layer())
    for module in merged.modules():  # peft leaves its settings where it was asked to put adapters
        vars(module).pop("peft_config", None)
    return merged


def adapter_state(network: nn.Module) -> dict[str, Tensor]:
    """The adapters' tensors by the names that peft's files use."""
    # an embedding's are tensors (lora_embedding_A.default), other layers' are layers (lora_A.default.weight)
    adapter = re.compile(rf"(\.lora_\w+)\.{NAME}(?=\.|$)")
    state = network.state_dict()
    return {PREFIX + adapter.sub(r"\1", name): value for name, value in state.items() if adapter.search(name)}


def write_adapters(network: nn.Module, lora: LoRA, folder: str | Path) -> None:
    """Writes a folder that `peft.PeftModel.from_pretrained(base, folder)` loads, adapters alone."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    lora.config().save_pretrained(folder)
    write_safetensors(folder / WEIGHTS, adapter_state(network), {"format": "pt"})


@torch.no_grad()
def read_adapters(network: nn.Module, lora: LoRA, folder: str | Path) -> None:
    """Puts the adapters of such a folder into a network that has adapters of the same rank, targets and scale."""
    path = Path(folder) / WEIGHTS
    for file in (path, Path(folder) / CONFIG):
        if not file.is_file():
            raise FileNotFoundError(f"no {file.name} in {folder}; give a folder of adapters (fedgen's or peft's)")
    found, mine = read_safetensors(path)[0], adapter_state(network)
    shapes = {name: tuple(value.shape) for name, value in mine.items()}
    if shapes != {name: tuple(value.shape) for name, value in found.items()}:
        raise ValueError(
            f"{path} holds {len(found)} tensors that do not fit this network's {len(mine)} adapters; build it with the"
            " rank and targets of the folder's adapter_config.json"
        )
    if not all(value.is_floating_point() and value.isfinite().all() for value in found.values()):
        raise ValueError(f"{path} holds NaN, infinity or whole numbers where adapters are weights")
    _check_scale(lora, Path(folder) / CONFIG)
    for name, value in mine.items():
        value.copy_(found[name])


def _check_scale(lora: LoRA, path: Path) -> None:
    """Raises ValueError unless a folder's adapters were trained at this scale, which tensors do not show."""
    config = read_json(path)
    try:
        rank, alpha = config["r"], config["lora_alpha"]
        scale = alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)
    except (KeyError, TypeError, AttributeError, ValueError, ArithmeticError) as error:
        raise ValueError(f"{path} does not say the adapters' scale ({error!r}); copy the folder again") from error
    if config.get("alpha_pattern"):
        raise ValueError(f"{path}: some of its layers' adapters act at another scale (alpha_pattern), fedgen's at one")
    if not math.isclose(scale, lora.scale):
        raise ValueError(
            f"{path}: its adapters act at a scale of {scale:g}, this network's at {lora.scale:g}; build it with"
            f" LoRA(rank={rank}, alpha={scale * rank:g})"
        )


def adapted(network: nn.Module) -> nn.Module:
    """The part of a network that adapters belong to: a UNet's own of diffusers, so that they fit its folders."""
    body = optional(network, ImageNetwork, "body")
    return network if body is None else body
