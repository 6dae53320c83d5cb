"""The card of a model: what it is, and what its records say of it, in Markdown for the hub."""

import hashlib
import html
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from lightning.pytorch import LightningModule

from fedgen.evaluation.gaps import GAPS
from fedgen.evaluation.marks import explained, mark_of
from fedgen.evaluation.records import ScoreRecord
from fedgen.evaluation.runs.run_files import PARTITION
from fedgen.evaluation.tables.table import format_value
from fedgen.foreign_text import printable_lines
from fedgen.images import save_png, tile, to_uint8
from fedgen.io.files import read_npz
from fedgen.models.ema import averages_of
from fedgen.models.optional_hooks import of_module
from fedgen.reports.contents import read_contents

CARD, PICTURE = "README.md", "samples.png"
NUM_SAMPLES, SIDE = 36, 32  # images of the picture, and pixels that smaller ones are enlarged to
_MARKDOWN = "\\`*_{}[]#!|~:@"  # of which links, headings, code and cells are made


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
        load: the lines that load it.
    """

    kind: str
    facts: dict[str, str] = field(default_factory=dict)
    records: Sequence[ScoreRecord] = ()
    recipe: str = ""
    license: str = ""
    picture: str = ""
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
        card.records = [r for r in records if r.split not in GAPS and (r.is_floor or (r.is_model and r.round == round))]
        if round is not None:
            card.facts["round"] = f"{round}, counted from 0"
        if own := [r for r in card.records if r.is_model]:
            card.facts["scored against"] = own[0].reference
            card.facts["clients"] = str(own[0].num_clients)
        if used := of_module(model).optimised_on:
            card.facts["a loss was in"] = ", ".join(used)
        return card

    def text(self) -> str:
        """The card in Markdown, with the hub's settings in front; texts of records and data are shown, never obeyed."""
        settings: dict[str, Any] = {"library_name": "fedgen", "tags": ["federated-learning", "generative-model"]}
        settings |= {"license": self.license} if self.license else {}
        parts = [f"---\n{yaml.safe_dump(settings, sort_keys=False)}---", f"# {plain(self.kind)}, trained with fedgen"]
        if self.picture:
            parts.append(f"![samples, not selected]({self.picture})\n\n*Samples, not selected.*")
        parts.append(
            "\n".join(["| | |", "|---|---|", *(f"| {plain(n)} | {plain(v)} |" for n, v in self.facts.items())])
        )
        parts.append(self._scores())
        parts.append(f"```python\n{self.load}\nimages = model.sample(16)  # float32 [16, C, H, W] in [-1, 1]\n```")
        if self.recipe:
            lines = (f"    {line}".rstrip() for line in printable_lines(self.recipe).split("\n"))
            parts.append("\n".join(["## Recipe", "", *lines]))
        return "\n\n".join(part for part in parts if part) + "\n"

    def _scores(self) -> str:
        """Both aggregates of each score with errors, and the floor of each."""
        own = [r for r in self.records if r.is_model]
        rows = list(dict.fromkeys((r.split, r.embedding, r.score) for r in own))
        if not rows:
            return "No score of it was recorded."
        lines = ["| clients' images | embedding | score | avg | floor | all | floor | images |", "|---" * 8 + "|"]
        for row in rows:
            cells = [self._cell(row, aggregate, floor) for aggregate in ("avg", "all") for floor in (False, True)]
            number = next(r.num_generated for r in own if (r.split, r.embedding, r.score) == row)
            lines.append(f"| {' | '.join([*map(plain, row), *cells, f'{number:,}'])} |")
        marks = explained(own)
        words = (
            "± is one standard error. avg is the mean of the clients' scores, all the score to their pooled images; the"
            " floor is of real images in the model's place."
        )
        return "\n".join(["## Scores", "", *lines, "", words, *("" if not marks else ["", *map(plain, marks)])])

    def _cell(self, row: tuple[str, str, str], aggregate: str, floor: bool) -> str:
        found = [
            r
            for r in self.records
            if (r.split, r.embedding, r.score) == row and r.aggregate == aggregate and r.is_floor == floor
        ]
        if not found:
            return ""
        value = format_value(found[-1].value, found[-1].standard_error)
        return plain(f"{value} {'' if floor else mark_of(found[-1])}".rstrip())


def card_of_run(model: LightningModule, run: str | Path, round: int | None, license: str | None = None) -> ModelCard:
    """The card of a checkpoint's model: its run's scores, partition, privacy and recipe."""
    contents = read_contents(run)
    card = ModelCard.of(model, contents.records, round, license)
    saved = contents.folder / PARTITION
    card.facts["partition"] = partition_hash(saved) if saved.exists() else "not kept"
    epsilon = [(name, series.values[-1]) for name, series in contents.series.items() if "epsilon" in name]
    card.facts["privacy"] = ", ".join(f"{name} {value:.4g}" for name, value in epsilon) or "no epsilon was logged"
    card.recipe = contents.recipe
    return card


def partition_hash(path: Path) -> str:
    """A hash of who has which example (BLAKE2b, 32 hex digits), of a run's partition file."""
    digest = hashlib.blake2b(digest_size=16)
    for name, values in sorted(read_npz(path, ["indices", "offsets"]).items()):
        digest.update(f"{name} {len(values)};".encode())
        digest.update(np.ascontiguousarray(values, dtype="<i8").tobytes())
    return digest.hexdigest()


def draw_samples(model: Any, path: Path, number: int = NUM_SAMPLES) -> Path | None:
    """Writes a grid of a model's images, seed 0; None for one that makes no pictures of one or three channels."""
    if not hasattr(model, "sample"):
        return None
    images = model.sample(number, torch.Generator().manual_seed(0))
    if images.ndim != 4 or images.shape[1] not in (1, 3):
        return None
    return save_png(path, tile(to_uint8(images), min_side=SIDE))


def plain(text: str) -> str:
    """A text as Markdown that shows it and nothing else: no markup, link, HTML or cell of a table comes of it."""
    shown = html.escape(printable_lines(text).replace("\n", " "), quote=False)
    escaped = "".join(f"\\{character}" if character in _MARKDOWN else character for character in shown)
    return escaped.replace("www.", "www\\.")
