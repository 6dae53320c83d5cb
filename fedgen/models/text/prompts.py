"""Prompts as a frozen text encoder's hidden states."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from fedgen.extras import need


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
        tokenizer = transformers.CLIPTokenizer.from_pretrained(folder / "tokenizer", local_files_only=True)
        encoder = transformers.CLIPTextModel.from_pretrained(
            folder / "text_encoder", use_safetensors=True, local_files_only=True
        )
    except Exception as error:  # settings from files may fail in any way
        reason = " ".join(str(error).split())
        raise ValueError(f"{folder}: tokenizer and text_encoder are no CLIP's in safetensors ({reason})") from error
    length = encoder.config.max_position_embeddings
    tokens = tokenizer(list(prompts), padding="max_length", max_length=length, truncation=True, return_tensors="pt")
    found: Tensor = encoder.float().eval()(tokens.input_ids)[0]
    return found
