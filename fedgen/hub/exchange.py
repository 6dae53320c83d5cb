"""Models saved for others, loaded from them, and sent to the Hugging Face hub."""

import json
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import lightning
from lightning.pytorch import LightningModule

import fedgen
from fedgen import models
from fedgen.evaluation.names import list_checkpoints
from fedgen.evaluation.runs.run_folder import select
from fedgen.evaluation.runs.scores_file import RECIPE, read_recipe
from fedgen.extras import need
from fedgen.hub.model_card import CARD, PICTURE, ModelCard, card_of_run, draw_samples
from fedgen.io.field_types import conforms
from fedgen.io.files import atomic_write, read_json, write_json
from fedgen.io.regular_files import read_regular
from fedgen.io.tensor_files import find_folder, read_safetensors, write_safetensors
from fedgen.models import DDPM
from fedgen.models.checkpoint_file import OPTIMISED_ON, model_of, rebuild_model
from fedgen.models.networks.network import TRUSTED

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
