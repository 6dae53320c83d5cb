"""Trained models for others: folders of weights, settings and a card of records, here or on the Hugging Face hub."""

from typing import TYPE_CHECKING

from fedgen.lazy import load_on_use

if TYPE_CHECKING:
    from fedgen.hub.exchange import ModelCard, from_pretrained, push_to_hub, save_pretrained

__all__ = ["ModelCard", "from_pretrained", "push_to_hub", "save_pretrained"]

load_on_use(__name__)
