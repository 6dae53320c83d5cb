"""The card of a model: what it is, and what its records say of it, in Markdown for the hub."""

import hashlib
import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from lightning.pytorch import LightningModule

from fedgen.data.optional_attributes import optional
from fedgen.evaluation.marks import GAPS, explained, mark_of
from fedgen.evaluation.records import ScoreRecord, say_number
from fedgen.evaluation.runs.scores_file import PARTITION, SCORES_FILE, read_records
from fedgen.evaluation.runs.selection import one_kind
from fedgen.foreign_text import printable_lines
from fedgen.images import save_png, tile, to_uint8
from fedgen.io.files import atomic_write, read_npz
from fedgen.models.ema import averages_of
from fedgen.models.optional_hooks import FederatedModule
from fedgen.recipe.recipe_files import flatten
from fedgen.reports.contents import read_contents

CARD, PICTURE, TEXTS = "README.md", "samples.png", ".txt"
NUM_SAMPLES, SIDE = 36, 32  # images of the picture, and pixels that smaller ones are enlarged to
_MARKDOWN = "\\`*_{}[]#!|~:@"  # of which links, headings, code and cells are made
_MODULES = re.compile(r"^([a-z_]\w*\.)+")  # in front of a class's name
_KNOWN = ("fedgen.", "torch.", "lightning.")  # packages whose classes are private by an aggregator alone


@dataclass
class ModelCard:
    """The card of a model.

    Attributes:
        kind: its class.
        facts: names and values, in their order.
        records: scores of this checkpoint, and of real images in its place.
        recipe: as it ran, YAML.
        license: an identifier; "" for none.
        picture: the name of a file beside the card; "" for none.
        about: more of it, Markdown that stands as it is.
        load: the lines that load it.
    """

    kind: str
    facts: dict[str, str] = field(default_factory=dict)
    records: Sequence[ScoreRecord] = ()
    recipe: str = ""
    license: str = ""
    picture: str = ""
    about: str = ""
    load: str = "from fedgen.hub import from_pretrained\n\nmodel = from_pretrained(FOLDER_OR_NAME)"

    @classmethod
    def of(
        cls,
        model: LightningModule,
        records: Sequence[ScoreRecord] = (),
        round: int | None = None,
        license: str | None = None,
    ) -> "ModelCard":
        """The card of a model, of the records of one round.

        Args:
            model: of the kit.
            records: of all rounds, and of real images in a model's place.
            round: that the model is of.
            license: of the weights.
        """
        card = cls(type(model).__name__, license=license or "")
        copies = {id(parameter) for _, average in averages_of(model) for parameter in average.parameters()}
        card.facts["parameters"] = f"{sum(p.numel() for p in model.parameters() if id(p) not in copies):,}"
        own = [r for r in records if r.split not in GAPS and (r.is_floor or (r.is_model and r.round == round))]
        card.records = one_kind(own)
        if round is not None:
            card.facts["rounds"] = f"{round + 1:,}"
        if own := [r for r in card.records if r.is_model]:
            card.facts["scored against"] = own[0].reference
            card.facts["clients"] = str(own[0].num_clients)
        if used := optional(model, FederatedModule, "optimised_on"):
            card.facts["a loss was in"] = ", ".join(used)
        return card

    def text(self) -> str:
        """The card in Markdown, with the hub's settings in front; texts of records and data are shown, never obeyed."""
        settings: dict[str, Any] = {"library_name": "fedgen", "tags": ["federated-learning", "generative-model"]}
        settings |= {"license": self.license} if self.license else {}
        parts = [f"---\n{yaml.safe_dump(settings, sort_keys=False)}---", f"# {plain(self.kind)}, trained with fedgen"]
        drawn = "images = model.sample(16)  # float32 [16, C, H, W] in [-1, 1]"
        if self.picture.endswith(TEXTS):
            parts.append(f"[Samples, not selected]({self.picture}).")
            drawn = "texts = model.sample(16)  # strings"
        elif self.picture:
            parts.append(f"![samples, not selected]({self.picture})\n\n*Samples, not selected.*")
        rows = (f"| {plain(name)} | {plain(value)} |" for name, value in self.facts.items())
        parts.append("\n".join(["| | |", "|---|---|", *rows]))
        parts += [self._scores(), self.about]
        parts.append(f"```python\n{self.load}\n{drawn}\n```")
        if self.recipe:
            lines = (f"    {line}".rstrip() for line in printable_lines(self.recipe).split("\n"))
            parts.append("\n".join(["## Recipe", "", *lines]))
        return "\n\n".join(part for part in parts if part) + "\n"

    def _scores(self) -> str:
        own = [r for r in self.records if r.is_model]
        rows = list(dict.fromkeys((r.split, r.embedding, r.score) for r in own))
        if not rows:
            return "No score of it was recorded."
        lines = ["| clients' images | embedding | score | avg | floor | all | floor | images |", "|---" * 8 + "|"]
        for row in rows:
            cells = [self._cell(row, aggregate, floor) for aggregate in ("avg", "all") for floor in (False, True)]
            lines.append(f"| {' | '.join([*map(plain, row), *cells, self._images(row)])} |")
        words = (
            "± is one standard error. avg is the mean of the clients' scores, all the score to their pooled images; the"
            " floor is of real images in the model's place."
        )
        remarks = [plain(mark) for mark in explained(own)] + self._notes(rows)
        return "\n".join(["## Scores", "", *lines, "", words, *(f"\n{remark}" for remark in remarks)])

    def _of(self, row: tuple[str, str, str], floor: bool) -> list[ScoreRecord]:
        """The records of a row that the card shows: both aggregates of the model, or of the floor."""
        shown = [r for r in self.records if (r.split, r.embedding, r.score) == row and r.aggregate in ("avg", "all")]
        return [r for r in shown if r.is_floor == floor]

    def _images(self, row: tuple[str, str, str]) -> str:
        """The number of images of a row's scores, and of its floor where it is another."""
        own, real = ({r.num_generated for r in self._of(row, floor)} for floor in (False, True))
        counts, floors = (", ".join(f"{number:,}" for number in sorted(numbers)) for numbers in (own, real))
        return f"{counts}; floor {floors}" if real - own else counts

    def _notes(self, rows: Sequence[tuple[str, str, str]]) -> list[str]:
        """The notes of the values shown, each once, behind the rows that it is of."""
        found: dict[str, list[str]] = {}
        for row in rows:
            for floor in (False, True):
                for note in dict.fromkeys(r.note for r in self._of(row, floor) if r.note):
                    found.setdefault(note, []).append(" ".join(row) + floor * ", floor")
        return [plain(f"{'; '.join(of)}: {note}.") for note, of in found.items()]

    def _cell(self, row: tuple[str, str, str], aggregate: str, floor: bool) -> str:
        found = [r for r in self._of(row, floor) if r.aggregate == aggregate]
        if not found:
            return ""
        value = say_number(found[-1].value, found[-1].standard_error)
        return plain(f"{value} {'' if floor else mark_of(found[-1])}".rstrip())


def card_of_run(model: LightningModule, run: str | Path, round: int | None, license: str | None = None) -> ModelCard:
    """The card of a checkpoint's model: its run's scores, data, partition, privacy and recipe."""
    contents = read_contents(run)
    card = ModelCard.of(model, read_records(contents.folder / SCORES_FILE), round, license)
    card.facts |= facts_of_recipe(contents.settings)
    saved = contents.folder / PARTITION
    card.facts["hash of the partition"] = partition_hash(saved) if saved.exists() else "not kept"
    epsilon = [(name, series.values[-1]) for name, series in contents.series.items() if "epsilon" in name]
    if epsilon:
        card.facts["privacy"] = ", ".join(f"{name} {value:.4g}" for name, value in epsilon)
    card.recipe = contents.recipe
    return card


def facts_of_recipe(settings: Mapping[str, Any]) -> dict[str, str]:
    flat = flatten(settings)
    facts = {}
    for name in ("data", "partition"):
        if kind := flat.get(f"data.init_args.{name}.class_path"):
            start = f"data.init_args.{name}.init_args."
            given = {k.removeprefix(start): v for k, v in flat.items() if k.startswith(start) and v is not None}
            options = ", ".join(f"{key}={value}" for key, value in given.items())
            facts[name] = f"{_MODULES.sub('', str(kind))}({options})"
    classes = [str(value) for key, value in flat.items() if key.rpartition(".")[2] == "class_path"]
    aggregator = "trainer.strategy.init_args.aggregator"
    is_averaged = all(value is None for key, value in flat.items() if key.startswith(aggregator))
    is_plain = bool(classes) and is_averaged and all(path.startswith(_KNOWN) for path in classes)
    facts["privacy"] = "none: trained without differential privacy" if is_plain else "no epsilon was logged"
    return facts


def partition_hash(path: Path) -> str:
    """A hash of who has which example (BLAKE2b, 32 hex digits), of a run's partition file."""
    digest = hashlib.blake2b(digest_size=16)
    for name, values in sorted(read_npz(path, ["indices", "offsets"]).items()):
        digest.update(f"{name} {len(values)};".encode())
        digest.update(np.ascontiguousarray(values, dtype="<i8").tobytes())
    return digest.hexdigest()


def draw_samples(model: Any, path: Path, number: int = NUM_SAMPLES) -> Path | None:
    """Writes a grid of a model's images, or a file of its texts, seed 0; None for one that makes neither."""
    if not hasattr(model, "sample"):
        return None
    images = model.sample(number, torch.Generator().manual_seed(0))
    if isinstance(images, list):
        with atomic_write(path := path.with_suffix(TEXTS)) as file:
            file.write("".join(f"{text}\n" for text in images).encode())
        return path
    if images.ndim != 4 or images.shape[1] not in (1, 3):
        return None
    return save_png(path, tile(to_uint8(images), min_side=SIDE))


def plain(text: str) -> str:
    """A text as Markdown that shows it and nothing else: no markup, link, HTML or cell of a table comes of it."""
    shown = html.escape(printable_lines(text).replace("\n", " "), quote=False)
    escaped = "".join(f"\\{character}" if character in _MARKDOWN else character for character in shown)
    return escaped.replace("www.", "www\\.")
