"""Models saved for others, with a card in Markdown of their records; loaded from them, and sent to the hub."""

import hashlib
import html
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import lightning
import numpy as np
import torch
import yaml
from lightning.pytorch import LightningModule

import fedgen
from fedgen import models
from fedgen.data.optional_attributes import optional
from fedgen.evaluation.marks import GAPS, explained, mark_of
from fedgen.evaluation.names import list_checkpoints
from fedgen.evaluation.records import ScoreRecord, say_number
from fedgen.evaluation.runs.run_folder import select
from fedgen.evaluation.runs.scores_file import PARTITION, RECIPE, SCORES_FILE, read_recipe, read_records
from fedgen.evaluation.runs.selection import one_kind
from fedgen.extras import need
from fedgen.foreign_text import printable_lines
from fedgen.images import save_png, tile, to_uint8
from fedgen.io.field_types import conforms
from fedgen.io.files import atomic_write, read_json, read_npz, write_json
from fedgen.io.regular_files import read_regular
from fedgen.io.tensor_files import find_folder, read_safetensors, write_safetensors
from fedgen.models import DDPM
from fedgen.models.checkpoint_file import OPTIMISED_ON, model_of, rebuild_model
from fedgen.models.ema import averages_of
from fedgen.models.networks.network import TRUSTED
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
        noun = own[0].noun
        lines = [f"| clients' {noun} | embedding | score | avg | floor | all | floor | {noun} |", "|---" * 8 + "|"]
        for row in rows:
            cells = [self._cell(row, aggregate, floor) for aggregate in ("avg", "all") for floor in (False, True)]
            lines.append(f"| {' | '.join([*map(plain, row), *cells, self._images(row)])} |")
        words = (
            "± is one standard error. avg is the mean of the clients' scores, all the score to their pooled"
            f" {noun}; the floor is of real {noun} in the model's place."
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


# ---- folders of models ----

FORMAT, VERSION = "fedgen-model", 1
CONFIG, WEIGHTS = "config.json", "model.safetensors"
MODELS = (
    "DDPM",
    "EDM",
    "FlowMatching",
    "GAN",
    "VAE",
    "WGANGP",
    "CharacterLSTM",
    "CharacterTransformer",
    "DistributedFineTuning",
    "FineTuning",
    "Glow",
    "StyleGAN2",
)
"""Names of the classes that such a folder may hold, each of `fedgen.models`."""


def model_class(name: str, owner: str) -> type[LightningModule]:
    """The kit's class of a name; ValueError if it is none that such folders may hold: nothing is imported for it."""
    if name not in MODELS:
        raise ValueError(f"{owner} names the class {name!r}, which is none of {', '.join(MODELS)}")
    found: type[LightningModule] = getattr(models, name)
    return found


def write_model(folder: Path, model: LightningModule) -> None:
    """Writes weights and settings into a folder; ValueError for networks that are not the kit's."""
    kind = model_class(type(model).__name__, f"{type(model).__module__}.{type(model).__qualname__}")
    if type(model) is not kind:
        raise ValueError(f"{type(model).__module__}.{type(model).__qualname__} is not fedgen.models.{kind.__name__}")
    arguments = dict(model.hparams)
    if foreign := [path for path in _class_paths(arguments) if not path.startswith(TRUSTED)]:
        raise ValueError(
            f"the model has a {foreign[0]}, and a folder may name classes of {TRUSTED[:-1]} alone: whoever loads it"
            " must not run anybody else's code"
        )
    kept: dict[str, Any] = {"state_dict": model.state_dict()}
    model.on_save_checkpoint(kept)
    config = {
        "format": FORMAT,
        "version": VERSION,
        "fedgen": fedgen.__version__,
        "class": kind.__name__,
        "arguments": json.loads(json.dumps(arguments, allow_nan=False)),
        OPTIMISED_ON: kept.get(OPTIMISED_ON, []),
    }
    # a copy of each: two names of one tensor have no place in such a file
    write_safetensors(folder / WEIGHTS, {name: value.clone() for name, value in kept["state_dict"].items()}, {})
    write_json(folder / CONFIG, config)


def read_model(folder: Path) -> LightningModule:
    path = folder / CONFIG
    config = read_json(path)
    if not isinstance(config, dict) or config.get("format") != FORMAT:
        raise ValueError(f"{path} is not of a model of fedgen: its format is not {FORMAT!r}")
    if config.get("version") != VERSION:
        raise ValueError(f"{path} has version {config.get('version')!r} of {FORMAT}; this fedgen reads {VERSION}")
    arguments, used = config.get("arguments"), config.get(OPTIMISED_ON, [])
    if not conforms(arguments, dict[str, Any]) or not conforms(used, list[str]):
        raise ValueError(f"{path} is damaged: its arguments or {OPTIMISED_ON} are not what fedgen writes")
    kind = model_class(str(config.get("class")), str(path))
    state, _ = read_safetensors(folder / WEIGHTS)
    written = {"pytorch-lightning_version": lightning.__version__}  # so that Lightning takes it as it is
    checkpoint = written | {"state_dict": state, "hyper_parameters": arguments, OPTIMISED_ON: used}
    return model_of(kind, checkpoint, str(folder)).eval()


def _class_paths(value: Any) -> list[str]:
    if isinstance(value, Mapping):
        own = [value["class_path"]] if isinstance(value.get("class_path"), str) else []
        return own + [path for part in value.values() for path in _class_paths(part)]
    return [path for part in value for path in _class_paths(part)] if isinstance(value, list | tuple) else []


DIFFUSERS = "_class_name"  # in config.json of folders of diffusers


def save_pretrained(
    model: LightningModule | str | Path,
    folder: str | Path,
    run: str | Path | None = None,
    round: int | None = None,
    by: str | None = None,
    license: str | None = None,
) -> ModelCard:
    """Writes a folder that `from_pretrained` loads, with a card (README.md) made from a run's records.

    The folder gets the weights (safetensors), class and arguments (JSON of plain values), samples, and the recipe as it
    ran. The recipe has paths of this machine, and names of data: read it before you publish it.

    Args:
        model: a model of the kit; or a run folder of `fedgen fit`, of which the best checkpoint is taken.
        folder: where to; made if it is not there, and files of these names are replaced.
        run: the run folder that a given model comes from, whose records the card tells.
        round: the checkpoint's round; the best one's by default.
        by: the column that says which is best; as `fedgen.select`.
        license: of the weights, an identifier such as "apache-2.0"; the card has none by default.

    Returns:
        The card as it was written.

    Raises:
        FileNotFoundError: if the run has no such checkpoint.
        ValueError: for a model that is not the kit's, or has networks that are not.
    """
    if isinstance(model, str | Path):
        run = Path(model)
        round = select(run, by)[0].round if round is None else round
        model = _model_at(run, round)
    elif run is not None and round is None:
        round = select(run, by)[0].round
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    write_model(target, model)
    card = card_of_run(model, run, round, license) if run is not None else ModelCard.of(model, license=license)
    picture = draw_samples(model, target / PICTURE)
    card.picture = picture.name if picture is not None else ""
    if run is not None and (recipe := Path(run) / RECIPE).exists():
        with atomic_write(target / RECIPE) as file:
            file.write(read_regular(recipe))
    with atomic_write(target / CARD) as file:
        file.write(card.text().encode())
    return card


def from_pretrained(name: str | Path, revision: str | None = None) -> Any:
    """The model of a folder that `save_pretrained` wrote, here or on the hub; a `DDPM` of a folder of diffusers.

    Nothing of the folder is run: weights are read from safetensors, the class is looked up among the kit's own, and its
    arguments are plain values that may name no other file.

    Args:
        name: the folder, or owner/model on the hub.
        revision: of the hub's model: a branch, tag or commit.

    Returns:
        The model, on the CPU and in eval mode; `sample(16)` draws images.

    Raises:
        FileNotFoundError: if there is no such folder or model, or it lacks a file.
        ValueError: if it is of another kind, damaged, or its weights do not fit its settings.
    """
    folder = find_folder(name, "name", revision)
    if (folder / "model_index.json").is_file():
        return DDPM.from_pretrained(folder).eval()
    if not (folder / CONFIG).is_file():
        raise FileNotFoundError(f"{folder} has no {CONFIG}: save_pretrained of fedgen.hub did not write it")
    config = read_json(folder / CONFIG)
    if isinstance(config, dict) and DIFFUSERS in config:
        return DDPM.from_pretrained(folder).eval()
    return read_model(folder)


def push_to_hub(
    model: LightningModule | str | Path,
    repo: str,
    run: str | Path | None = None,
    round: int | None = None,
    by: str | None = None,
    license: str | None = None,
    private: bool = True,
    token: str | None = None,
) -> str:
    """Sends the folder of `save_pretrained` to the Hugging Face hub; returns its address there.

    Args:
        model: as `save_pretrained` takes it; `run`, `round`, `by` and `license` likewise.
        repo: owner/model; it is made if it is not there.
        run: see there.
        round: see there.
        by: see there.
        license: see there.
        private: whether a repository that is made is for its owners alone.
        token: of the hub; that of `hf auth login` by default.

    Raises:
        MissingExtraError: without huggingface_hub.
    """
    api = need("huggingface_hub", "hub", "push_to_hub").HfApi(token=token)
    with TemporaryDirectory() as folder:
        save_pretrained(model, folder, run, round, by, license)
        made = api.create_repo(repo_id=repo, private=private, exist_ok=True)
        api.upload_folder(repo_id=made.repo_id, folder_path=folder, commit_message="A model and its card, by fedgen")
    return str(made)


def _model_at(run: Path, round: int) -> LightningModule:
    path = run / RECIPE
    described = read_recipe(path)["model"]
    name = described["class_path"] if isinstance(described, dict) else described
    module, _, kind = str(name).rpartition(".")
    if module and module.partition(".")[0] != "fedgen":
        raise ValueError(f"{path} trains a {name}; only models of fedgen.models can be saved for others")
    checkpoints = list_checkpoints(run)
    if round not in checkpoints:
        raise FileNotFoundError(f"{run} has no checkpoint of round {round}, but of {', '.join(map(str, checkpoints))}")
    model: LightningModule = rebuild_model(model_class(kind, str(path)), checkpoints[round])
    return model.eval()
