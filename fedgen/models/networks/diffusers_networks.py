"""Networks on those of diffusers (a UNet, one asked by prompts, an autoencoder), and the folders that hold them."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedgen.extras import need
from fedgen.io.files import read_json
from fedgen.io.tensor_files import build_from, copied_settings, find_folder, load_transformer, read_weights
from fedgen.models.networks.network import Network, arguments_of
from fedgen.models.require import require

CONFIG = "config.json"
WEIGHTS = "diffusion_pytorch_model"


def read_body(folder: Path, kind: str, missing: str, use: str) -> Any:
    """The network `kind` of a folder; errors say by `missing` that it has no config, by `use` what fedgen does."""
    # each file is read once, and no code of the folder is run
    config = read_settings(folder / CONFIG, missing)
    if config.get("_class_name") != kind:
        raise ValueError(f"{folder / CONFIG} is of a {config.get('_class_name')}, {use} {kind}")
    found = getattr(need("diffusers", "diffusion", "a folder of diffusers"), kind)
    state = read_weights(folder, WEIGHTS, kind)
    try:
        return build_from(found, config, state)
    except Exception as error:  # settings from a file may fail in any way
        raise ValueError(f"{folder / CONFIG} and {WEIGHTS}.safetensors beside it are no {kind} ({error})") from error


def read_settings(path: Path, missing: str = "") -> dict[str, Any]:
    """The settings in a JSON file of such a folder; errors say by `missing` what it means that there is none."""
    if not path.is_file():
        raise FileNotFoundError(f"{missing}: there is no {path}")
    content = read_json(path)
    require(isinstance(content, dict), f"{path} is damaged: it holds no settings; copy the folder again")
    return content


def network_around(kind: Any, body: Any, source: Path | str, **options: Any) -> Any:
    """A network of a class with `around`, with the weights of a body that was read from a folder of diffusers."""
    try:
        network = kind.around(body.config, **options)
    except Exception as error:  # settings from a file may fail in any way
        raise ValueError(f"{source}: fedgen has no such {kind.__name__} ({error})") from error
    network.body.load_state_dict(body.state_dict())
    return network


class OnDiffusers(Network):
    """A network whose `body` is one of diffusers."""

    body: Any

    def save_memory(self) -> None:
        """From now on training keeps blocks' inputs only and computes the rest again in the backward pass."""
        self.body.enable_gradient_checkpointing()


def plain_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a network of diffusers, without its notes on them, such as which are its defaults."""
    return {key: value for key, value in config.items() if not key.startswith("_")}


# What Ho et al. 2020 (arXiv 2006.11239) do where diffusers' own defaults differ.
PAPER = {"downsample_padding": 0, "flip_sin_to_cos": False, "freq_shift": 1, "norm_eps": 1e-6}

Normalisation = Literal["group", "batch"]


class UNet(OnDiffusers):
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
        widths, attention = list(widths), list(attention)
        super().__init__(**arguments_of(locals()))
        unet = need("diffusers", "diffusion", "UNet").UNet2DModel
        config = {**PAPER, **_blocks(image_size, patch, widths, attention)}
        config |= {"layers_per_block": layers, "dropout": dropout, "sample_size": image_size // patch}
        config |= dict.fromkeys(("in_channels", "out_channels"), channels * patch**2)
        # at least four maps a group: normalising each map on its own would erase the timestep, which shifts whole maps
        config |= {"norm_num_groups": math.gcd(32, *(max(1, width // 4) for width in widths))}
        config |= {"attention_head_dim": None} | (options or {})
        if num_classes is not None:
            config["num_class_embeds"] = num_classes + null_label
        self.body = _normalised(unet(**config), normalisation)
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
            num_classes: rows of its label embedding that are classes, maybe all but one for "any"; all by default.
        """
        options = plain_config(config)
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


class AutoencoderKL(Network):
    """Normal posteriors of latents [N, c, h, w] of images [N, C, H, W] in [-1, 1], and images of latents.

    The convolutional autoencoder of Rombach et al. 2022 (arXiv 2112.10752); h and w are H and W halved once for every
    width beyond the first. The defaults are Stable Diffusion's; widths of 16 and 32 train on two CPU cores.

    Args:
        image_size: pixels a side that it is trained for, a multiple of 2 for every width beyond the first.
        channels: 1 grey, 3 colour.
        latent_channels: c.
        widths: feature maps at full size, half, a quarter, ...
        layers: residual blocks at each size, one more in the decoder.
        attention: whether the middle has self-attention.
        options: further arguments of diffusers' AutoencoderKL, which win over all the above.

    Raises:
        ValueError: for sizes that do not halve, or latents that are normalised channel by channel.
    """

    def __init__(
        self,
        image_size: int = 256,
        channels: int = 3,
        latent_channels: int = 4,
        widths: Sequence[int] = (128, 256, 512, 512),
        layers: int = 2,
        attention: bool = True,
        options: dict[str, Any] | None = None,
    ) -> None:
        widths = list(widths)
        super().__init__(**arguments_of(locals()))
        kind = need("diffusers", "diffusion", "AutoencoderKL").AutoencoderKL
        config: dict[str, Any] = {"sample_size": image_size, "in_channels": channels, "out_channels": channels}
        config |= {"latent_channels": latent_channels, "layers_per_block": layers, "scaling_factor": 1.0}
        config |= {"block_out_channels": tuple(widths), "mid_block_add_attention": attention}
        config |= {"down_block_types": ("DownEncoderBlock2D",) * len(widths)}
        config |= {"up_block_types": ("UpDecoderBlock2D",) * len(widths)}
        config |= {"norm_num_groups": math.gcd(32, *(max(1, width // 4) for width in widths))} | (options or {})
        side, self.factor = config["sample_size"], 2 ** (len(config["block_out_channels"]) - 1)
        require(
            len(config["block_out_channels"]) > 0 and side >= 1 and side % self.factor == 0,
            f"image_size={side} does not halve for the widths {list(config['block_out_channels'])}; pad the data"
            " (pad_to), or give fewer widths",
        )
        require(
            config.get("latents_mean") is None and config.get("latents_std") is None,
            "this AutoencoderKL normalises latents channel by channel (latents_mean, latents_std), and fedgen does so"
            " by one factor and shift; take another",
        )
        self.body: Any = kind(**config)
        self.image_shape = (config["in_channels"], side, side)
        self.latent_shape = (config["latent_channels"], side // self.factor, side // self.factor)

    @classmethod
    def around(cls, config: Mapping[str, Any]) -> "AutoencoderKL":
        """The network of a config of diffusers' AutoencoderKL, as in its config.json, with new weights."""
        options = plain_config(config)
        side, channels = options["sample_size"], options["in_channels"]
        return cls(side, channels, options["latent_channels"], options["block_out_channels"], options=options)

    @property
    def scaling(self) -> float:
        """The factor of latents, after the shift, for a model of them."""
        return float(self.body.config.scaling_factor)

    @property
    def shift(self) -> float:
        """The number that is subtracted from latents first."""
        return float(self.body.config.shift_factor or 0.0)

    def encode(self, images: Tensor) -> Any:
        """The posteriors of images [N, C, H, W]: an object with `sample()`, `mode()` and `kl()` in nats [N]."""
        return self.body.encode(images, return_dict=False)[0]

    def decode(self, latents: Tensor) -> Tensor:
        """Images [N, C, H, W] of latents [N, c, h, w], not cut to [-1, 1]."""
        found: Tensor = self.body.decode(latents, return_dict=False)[0]
        return found

    def forward(self, images: Tensor) -> Tensor:
        """Images [N, C, H, W] of the modes of images' posteriors."""
        return self.decode(self.encode(images).mode())


@torch.no_grad()
def embed_prompts(folder: Path, prompts: Sequence[str]) -> Tensor:
    """The last hidden states float32 [N, L, D] of prompts, as diffusers' StableDiffusionPipeline hands them over."""
    # weights are read from safetensors alone, nothing is fetched, and no code of the folder is run
    transformers = need("transformers", "backbones", "a network of prompts")
    for part in ("tokenizer", "text_encoder"):
        if not (folder / part).is_dir():
            raise FileNotFoundError(f"{folder} has no {part}: give the folder of a pipeline of texts, whole")
    try:
        with copied_settings(folder / "tokenizer") as place:
            tokenizer = transformers.CLIPTokenizer.from_pretrained(place, local_files_only=True)
        with copied_settings(folder / "text_encoder") as place:
            config = transformers.CLIPTextConfig.from_pretrained(place, local_files_only=True)
        encoder = load_transformer(transformers.CLIPTextModel, config, folder / "text_encoder", exact=True)
        length = config.max_position_embeddings
        tokens = tokenizer(list(prompts), padding="max_length", max_length=length, truncation=True, return_tensors="pt")
        found: Tensor = encoder.float()(tokens.input_ids)[0]
    except Exception as error:  # settings from files may fail in any way
        reason = " ".join(str(error).split())
        raise ValueError(f"{folder}: tokenizer and text_encoder are no CLIP's in safetensors ({reason})") from error
    return found


class PromptUNet(OnDiffusers):
    """Predictions [N, C, H, W] of noisy images or latents at timesteps [N], asked by the prompts of labels [N].

    Label k stands for the k-th prompt, and the label after the last for the empty one, "any class" of classifier-free
    guidance: a pretrained network of texts is fine-tuned on clients' labelled images as a conditional network is. The
    text encoder embeds all prompts once, when the network is made, and is not kept; prompts' embeddings are a buffer.

    Args:
        prompts: one for each of the data's classes, in their order.
        pretrained: the folder of a pipeline as diffusers' StableDiffusionPipeline leaves it, with `unet`, `tokenizer`
            and `text_encoder`, or its name on the hub.
        config: in its place, that of a UNet2DConditionModel, with weights and embeddings from a checkpoint.
        tokens: with `config`: of a prompt's embedding.

    Raises:
        FileNotFoundError: if there is no such folder, or it lacks a part.
        ValueError: for no prompts, neither folder nor config or both, files that are damaged or pickles, or a network
            that wants more than noisy images, times and a text.
    """

    def __init__(
        self,
        prompts: Sequence[str],
        pretrained: str | None = None,
        config: Mapping[str, Any] | None = None,
        tokens: int = 77,
    ) -> None:
        prompts = list(prompts)
        require(
            len(prompts) > 0 and all(isinstance(one, str) for one in prompts), f"prompts={prompts}: give one a class"
        )
        require((pretrained is None) != (config is None), "give the folder of a pipeline (pretrained), or a config")
        if pretrained is None:
            if not isinstance(config, Mapping):
                raise ValueError(f"config={config!r}: give the settings of a UNet2DConditionModel")
            body = need("diffusers", "diffusion", "PromptUNet").UNet2DConditionModel(**config)
            embeddings = torch.zeros(len(prompts) + 1, tokens, body.config.cross_attention_dim)
        else:
            folder = find_folder(pretrained, also=["tokenizer/merges.txt"])
            missing = f"{folder} is no diffusers folder of a pipeline of texts"
            body = read_body(folder / "unet", "UNet2DConditionModel", missing, "and networks of prompts are")
            embeddings = embed_prompts(folder, [*prompts, ""])
        kept = plain_config(body.config)
        super().__init__(prompts=prompts, config=kept, tokens=embeddings.shape[1])
        _check(kept, embeddings)
        self.body = body
        self.prompt_embeddings: Tensor
        self.register_buffer("prompt_embeddings", embeddings)
        self.num_classes, self.null_label = len(prompts), True
        size, channels = kept["sample_size"], kept["in_channels"]
        self.image_shape = (channels, *size) if isinstance(size, list | tuple) else (channels, size, size)

    def forward(self, images: Tensor, timesteps: Tensor, labels: Tensor | None = None) -> Tensor:
        """Labels are int64 [N]; without any, or `num_classes`, the prediction is for the empty prompt."""
        if labels is None:
            labels = torch.full((len(images),), self.num_classes, device=images.device)
        texts = self.prompt_embeddings[labels].to(images.dtype)
        found: Tensor = self.body(images, timesteps, encoder_hidden_states=texts, return_dict=False)[0]
        return found


def _check(config: Mapping[str, Any], embeddings: Tensor) -> None:
    wants = [key for key in ("addition_embed_type", "class_embed_type", "encoder_hid_dim_type") if config.get(key)]
    require(
        not wants, f"this UNet2DConditionModel wants more than a text ({', '.join(wants)}); fedgen has no such input"
    )
    require(
        config["in_channels"] == config["out_channels"],
        f"this UNet2DConditionModel has in_channels={config['in_channels']} and out_channels={config['out_channels']};"
        " fedgen needs as many out as in",
    )
    require(
        config["cross_attention_dim"] == embeddings.shape[2],
        f"texts have {embeddings.shape[2]} features, and the UNet2DConditionModel has"
        f" cross_attention_dim={config['cross_attention_dim']}; give a pipeline whose parts belong together",
    )
