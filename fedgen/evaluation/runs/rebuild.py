"""The model and the clients of a run, made again from the recipe that its folder keeps."""

import filecmp
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from glob import escape
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentError, ArgumentParser
from lightning.pytorch import LightningDataModule, LightningModule, seed_everything
from torch import Tensor, nn

from fedgen.class_paths import gives, import_object, load_classes
from fedgen.clients import FederatedDataModule
from fedgen.clients.client import load_roles, save_roles
from fedgen.clients.partitions import SavedPartition, load_partition, save_partition
from fedgen.evaluation.names import LAST, list_checkpoints
from fedgen.evaluation.runs.scores_file import PARTITION, RECIPE, ROLES, read_recipe
from fedgen.federated.client_state.exchange import Exchange
from fedgen.federated.federation_state import CHECKPOINT_KEY, check_packed, own_models
from fedgen.io.tensor_files import check_state, fill_empty
from fedgen.models.checkpoint_file import read_checkpoint, rebuild_model
from fedgen.own_code import warn
from fedgen.recipe.recipe_objects import explain, instantiate
from fedgen.seeds import isolated


def previous_checkpoint(folder: str | Path) -> Path:
    """The newest round's checkpoint that can be read and holds something else than `last.ckpt`."""
    last, damaged = Path(folder) / LAST, []
    for path in reversed(list_checkpoints(folder).values()):
        if last.exists() and filecmp.cmp(path, last, shallow=False):  # of the same round, most often the same file
            continue
        try:
            read_checkpoint(path)
        except (OSError, ValueError):  # a pipe or a folder of that name, too
            damaged.append(path.name)
            continue
        if damaged:
            warn(f"{folder}: {', '.join(damaged)} cannot be read and is passed over")
        return path
    unread = f"; {', '.join(damaged)} cannot be read" if damaged else ""
    raise FileNotFoundError(f"{folder} has no round's checkpoint before {LAST}{unread}")


def load_weights(module: nn.Module, path: str | Path) -> dict[str, Any]:
    """Puts a checkpoint's weights into a model; returns the checkpoint.

    Raises:
        ValueError: if it is damaged, of a training that diverged, or a checkpoint of another model, naming the tensors
            that do not fit.
    """
    checkpoint = read_checkpoint(path)
    if isinstance(module, LightningModule):
        module.on_load_checkpoint(checkpoint)
    try:
        fill_empty(module, checkpoint["state_dict"])
        check_state(module, checkpoint["state_dict"])
        if CHECKPOINT_KEY in checkpoint:
            check_packed(checkpoint[CHECKPOINT_KEY], module.state_dict())
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    try:
        module.load_state_dict(checkpoint["state_dict"])
    except RuntimeError as error:
        reasons = "; ".join(line.strip() for line in str(error).splitlines()[1:4])
        raise ValueError(f"{path} is a checkpoint of another model than {type(module).__name__}: {reasons}") from error
    return checkpoint


def local_models(module: nn.Module, checkpoint: Mapping[str, Any]) -> dict[int, dict[str, Tensor]]:
    """The clients' own tensors in a checkpoint of training without any exchange, by client; else nothing."""
    personal = _known(module, checkpoint.get(CHECKPOINT_KEY, {}).get("personal", {}))
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    kept = {tuple(map(escape, own)) for own in personal.values()}  # names as patterns of themselves alone
    return {} if any(Exchange(module, trained, names, fixed=True).shared for names in kept) else personal


def personal_tensors(module: nn.Module, checkpoint: Mapping[str, Any]) -> dict[int, dict[str, Tensor]]:
    """Those of a model's tensors that are clients' own, in a checkpoint, by client and name."""
    return _known(module, own_models(checkpoint.get(CHECKPOINT_KEY, {})))


def _known(module: nn.Module, personal: Mapping[int, Mapping[str, Tensor]]) -> dict[int, dict[str, Tensor]]:
    known = module.state_dict().keys()
    return {client: {name: own[name] for name in own if name in known} for client, own in personal.items()}


@contextmanager
def tensors_in_place(module: nn.Module, tensors: Mapping[str, Tensor]) -> Iterator[None]:
    """The module with some of its tensors replaced while the context lasts."""
    state = module.state_dict()
    before = {name: state[name].clone() for name in tensors}
    try:
        for name, value in tensors.items():
            state[name].copy_(value.detach())
        yield
    finally:
        for name, value in before.items():
            state[name].copy_(value)


def rebuild(run: str | Path) -> tuple[LightningModule, FederatedDataModule]:
    """The model, with the weights it is born with, and the clients of a run."""
    path = Path(run) / RECIPE
    recipe = read_recipe(path)
    load_classes()
    parser = ArgumentParser(exit_on_error=False)
    for key, kind in (("model", LightningModule), ("data", LightningDataModule)):
        parser.add_subclass_arguments(kind, key, required=True, fail_untyped=False)
    try:
        settings = parser.parse_object({key: recipe[key] for key in ("model", "data")})
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path} is not a recipe of `fedgen fit`: it lacks a model or data ({error!r})") from error
    except ArgumentError as error:
        raise ValueError(f"{path} cannot be made again with this fedgen: {explain(str(error))}") from error
    found = made(parser, settings, path, recipe.get("seed_everything", 0), run)
    return found.model, found.data


def made(parser: ArgumentParser, settings: Any, path: Path, seed: Any, run: str | Path) -> Any:
    """The objects of a recipe, with the clients of a run where its folder keeps them."""
    own = settings.data.get("init_args", {})
    if "seed" in own and own["seed"] is None:
        own["seed"] = seed
    with isolated():
        found = instantiate(parser, settings, path)
    if not isinstance(found.data, FederatedDataModule):
        raise ValueError(f"the data of {path} is a {type(found.data).__name__}, which has no clients")
    restore_clients(found.data, run)
    return found


def rebuild_given(run: str | Path, model: str, data: str) -> tuple[LightningModule, FederatedDataModule]:
    """The model and the clients of a run that was trained in Python, of what its author names."""
    folder = Path(run)
    if not folder.is_dir():
        raise FileNotFoundError(f"no run folder {folder}; give the folder that training wrote into")
    if (folder / RECIPE).exists():
        raise ValueError(f"{folder} has a recipe, which says what model and data are; leave --model and --data out")
    clients, found = clients_given(folder, data), import_object(model)
    if not (gives(found, LightningModule) and isinstance(found, type)):
        return _named(model, LightningModule), clients
    for checkpoint in list_checkpoints(folder).values():
        return rebuild_model(found, checkpoint), clients
    raise FileNotFoundError(f"{folder} has no checkpoint round=*.ckpt to make {model} of")


def clients_given(folder: Path, data: str) -> FederatedDataModule:
    """The clients of a run that was trained in Python, of the data that its author names; see `rebuild_given`."""
    saved, stored = folder / PARTITION, None
    if saved.exists():
        stored = load_partition(saved).seed
        seed_everything(stored, verbose=False)
    clients: FederatedDataModule = _named(data, FederatedDataModule)
    own = clients.seed
    if stored is not None and own != stored:
        raise ValueError(f"{saved} was made at seed {stored}, and {data} has seed {own}: give it seed={stored}")
    restore_clients(clients, folder)
    return clients


def _named(text: str, kind: type) -> Any:
    """Return what a text names, called if it is a function; ValueError unless that is of a kind."""
    found = import_object(text)
    found = found() if callable(found) and not isinstance(found, (kind, type)) else found
    if not isinstance(found, kind):
        wanted = f"a {kind.__name__}, or a function without arguments that makes one"
        raise ValueError(f"{text} must be {wanted}; got {found!r}")
    return found


def keep_clients(data: FederatedDataModule, run: str | Path) -> None:
    """Writes the partition, and which clients train, into a run's folder, for `restore_clients`."""
    save_partition(Path(run) / PARTITION, data.partition, data.examples, data.seed, data.dealt)
    if data.split is not None:
        save_roles(Path(run) / ROLES, data.roles, [client.name for client in data.everyone])


def restore_clients(data: FederatedDataModule, run: str | Path) -> None:
    """Gives a data module the partition and roles that a run's folder keeps; what it lacks stays."""
    if (saved := Path(run) / PARTITION).exists():
        data.partition = SavedPartition(saved)
    if (roles := Path(run) / ROLES).exists():
        data.roles = load_roles(roles)
