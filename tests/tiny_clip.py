"""A CLIP with random weights and a tokenizer of single letters, in the files of the published ones."""

import json

import torch
from transformers import CLIPConfig, CLIPImageProcessor, CLIPModel, CLIPTokenizer

LENGTH = 12  # tokens of a text, at most


def make_tokenizer(folder):
    """CLIP's, of single letters, and the number of its words."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = [*letters, *(f"{letter}</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    folder.mkdir()
    (folder / "vocab.json").write_text(json.dumps({word: number for number, word in enumerate(words)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    return CLIPTokenizer.from_pretrained(folder, model_max_length=LENGTH), len(words)


def save_clip_of_texts(folder):
    """Writes a CLIP of images and texts, with its tokenizer and image processor, as save_pretrained does."""
    torch.manual_seed(3)  # some cosines are above 0, some below
    tokenizer, words = make_tokenizer(folder.parent / f"{folder.name}-letters")
    side = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    ends = {"bos_token_id": words - 2, "eos_token_id": words - 1, "pad_token_id": words - 1}
    text = {**side, **ends, "vocab_size": words, "max_position_embeddings": LENGTH}
    vision = {**side, "image_size": 32, "patch_size": 16}
    CLIPModel(CLIPConfig(vision_config=vision, text_config=text, projection_dim=10)).save_pretrained(folder)
    size = {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}}
    CLIPImageProcessor(**size, do_center_crop=False).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
