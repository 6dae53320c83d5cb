"""The cards of the networks that come with the repository: `python -m fedgen.hub.shipped` writes them anew."""

from pathlib import Path

from fedgen.evaluation import read_records
from fedgen.evaluation.runs.scores_file import SCORES_FILE
from fedgen.hub.exchange import CARD, PICTURE, TEXTS, ModelCard, card_of_run, facts_of_recipe, from_pretrained
from fedgen.io.files import atomic_write, read_yaml
from fedgen.models import StyleGAN2
from fedgen.models.stylegan2.network_file import NetworkFile

CHECKPOINTS = Path("checkpoints")
STEM = "stylegan2_fashion_mnist"
PRETRAINED = {
    "flow_fashion_mnist": ("d53b6b5604113c415f1a19d359a0838c", "shipped-flows", PICTURE),
    "flow_photo_patches": ("de97ad8ceae9fb39ee477baab67a131f", "shipped-flows", PICTURE),
    "moses": ("eb2511a321ecf975bac406a7867b6d42", "molecules", str(Path(PICTURE).with_suffix(TEXTS))),
}
"""Folders of `checkpoints/pretrained`: `partition_hash` of their runs, whose partition files do not come with them; the
page on them; and their samples."""
LICENSE = "apache-2.0"


def shipped_card(folder: Path) -> ModelCard:
    path, recipe = folder / f"{STEM}.safetensors", folder / f"{STEM}.yaml"
    record = NetworkFile.read(path).record
    last = int(record["rounds"]) - 1
    card = ModelCard.of(StyleGAN2.from_file(path), read_records(folder / f"{STEM}.jsonl"), last, LICENSE)
    card.facts |= {"images shown": f"{record['kimg']:,} thousand", **facts_of_recipe(read_yaml(recipe))}
    card.picture, card.recipe = f"{STEM}.png", recipe.read_text()
    card.load = f'from fedgen.models import StyleGAN2\n\nmodel = StyleGAN2.from_file("{STEM}.safetensors")'
    return card


def pretrained_card(folder: Path) -> ModelCard:
    partition, page, samples = PRETRAINED[folder.name]
    last = max(record.round for record in read_records(folder / SCORES_FILE) if record.round is not None)
    card = card_of_run(from_pretrained(folder), folder, last, LICENSE)
    card.facts["hash of the partition"], card.picture = partition, samples
    card.about = (
        "[Curves of these scores](curves.png) and [scores of controls](comparisons) lie beside this card, and"
        f" [a page](../../../docs/{page}.md) compares the network with others and says which choices mattered."
    )
    place = f"{CHECKPOINTS}/pretrained/{folder.name}"
    card.load = f'from fedgen.hub import from_pretrained\n\nmodel = from_pretrained("{place}")'
    return card


if __name__ == "__main__":
    cards = {CHECKPOINTS / f"{STEM}.md": shipped_card(CHECKPOINTS)}
    cards |= {(folder := CHECKPOINTS / "pretrained" / name) / CARD: pretrained_card(folder) for name in PRETRAINED}
    for place, card in cards.items():
        with atomic_write(place) as file:
            file.write(card.text().encode())
