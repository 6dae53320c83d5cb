"""Trained models for others: folders of weights, settings and a card of records, here or on the Hugging Face hub."""

from typing import TYPE_CHECKING

from fedgen.lazy import load_on_use

if TYPE_CHECKING:
    from fedgen.hub.exchange import from_pretrained, push_to_hub, save_pretrained
    from fedgen.hub.model_card import ModelCard

__all__ = ["ModelCard", "from_pretrained", "push_to_hub", "save_pretrained"]

load_on_use(__name__)
