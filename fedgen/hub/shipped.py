"""The card of the StyleGAN2 that comes with the repository: `python -m fedgen.hub.shipped` writes it anew."""

from pathlib import Path

from fedgen.evaluation import read_records
from fedgen.hub.model_card import ModelCard
from fedgen.io.files import atomic_write
from fedgen.models import StyleGAN2
from fedgen.models.stylegan2.network_file import NetworkFile

STEM = "stylegan2_fashion_mnist"


def shipped_card(folder: Path) -> ModelCard:
    """The card, of the files that lie beside the weights.

    Args:
        folder: that holds them.
    """
    path = folder / f"{STEM}.safetensors"
    record = NetworkFile.read(path).record
    last = int(record["rounds"]) - 1
    card = ModelCard.of(StyleGAN2.from_file(path), read_records(folder / f"{STEM}.jsonl"), last, "apache-2.0")
    card.facts |= {
        "images shown": f"{record['kimg']:,} thousand",
        "partition": "ByClass, dealt by the recipe and its seed",
        "privacy": "none: trained without noise",
    }
    card.picture, card.recipe = f"{STEM}.png", (folder / f"{STEM}.yaml").read_text()
    card.load = f'from fedgen.models import StyleGAN2\n\nmodel = StyleGAN2.from_file("{STEM}.safetensors")'
    return card


if __name__ == "__main__":
    place = Path("checkpoints")
    with atomic_write(place / f"{STEM}.md") as file:
        file.write(shipped_card(place).text().encode())
