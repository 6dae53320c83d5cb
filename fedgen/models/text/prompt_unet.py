"""The UNet of text-conditional diffusion, on diffusers' UNet2DConditionModel."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedgen.extras import need
from fedgen.io.hub_folders import copied_settings, find_folder, load_transformer
from fedgen.models.networks.diffusers_folder import read_body
from fedgen.models.networks.network import Network
from fedgen.models.require import require


@torch.no_grad()
def embed_prompts(folder: Path, prompts: Sequence[str]) -> Tensor:
    """The last hidden states float32 [N, L, D] of prompts, padded or cut to the text encoder's L tokens.

    They are those that diffusers' StableDiffusionPipeline hands to its network. Weights are read from safetensors
    alone, nothing is fetched, and no code of the folder is run.

    Args:
        folder: of a pipeline, with CLIP's `tokenizer` and `text_encoder` below.
        prompts: texts.

    Raises:
        FileNotFoundError: if the folder lacks one of the two.
        ValueError: if they cannot be read, or are no CLIP's.
    """
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


class PromptUNet(Network):
    """Predictions [N, C, H, W] of noisy images or latents at timesteps [N], asked by the prompts of labels [N].

    Label k stands for the k-th prompt, and the label after the last for the empty one, "any class" of classifier-free
    guidance: a pretrained network of texts is fine-tuned on clients' labelled images as a conditional network is. The
    text encoder embeds all prompts once, when the network is made, and is not kept; prompts' embeddings are a buffer.

    Args:
        prompts: one for each of the data's classes, in their order.
        pretrained: the folder of a pipeline as diffusers' StableDiffusionPipeline leaves it, with `unet`, `tokenizer`
            and `text_encoder`, or its name on the hub.
        config: in its place, that of a UNet2DConditionModel, whose weights and prompts' embeddings are then read from a
            checkpoint.
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
            body = _made(config)
            embeddings = torch.zeros(len(prompts) + 1, tokens, body.config.cross_attention_dim)
        else:
            folder = find_folder(pretrained, also=["tokenizer/merges.txt"])
            body, embeddings = _read(folder), embed_prompts(folder, [*prompts, ""])
        kept = {key: value for key, value in body.config.items() if not key.startswith("_")}
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

    def save_memory(self) -> None:
        """From now on training keeps blocks' inputs only and computes the rest again in the backward pass."""
        self.body.enable_gradient_checkpointing()


def _read(pipeline: Path) -> Any:
    """The UNet2DConditionModel of a pipeline's folder."""
    missing = f"{pipeline} is no diffusers folder of a pipeline of texts"
    return read_body(pipeline / "unet", "UNet2DConditionModel", missing, "and networks of prompts are")


def _made(config: Any) -> Any:
    require(isinstance(config, Mapping), f"config={config!r}: give the settings of a UNet2DConditionModel")
    return need("diffusers", "diffusion", "PromptUNet").UNet2DConditionModel(**config)


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
