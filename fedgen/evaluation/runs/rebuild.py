"""The model and the clients of a run, made again from the recipe that its folder keeps."""

from pathlib import Path
from typing import Any

from jsonargparse import ArgumentError, ArgumentParser
from lightning.pytorch import LightningDataModule, LightningModule, seed_everything

from fedgen.class_paths import gives, import_object, load_classes
from fedgen.clients import FederatedDataModule
from fedgen.clients.client import load_roles, save_roles
from fedgen.clients.partitions import SavedPartition, load_partition, save_partition
from fedgen.evaluation.runs.checkpoint_names import list_checkpoints
from fedgen.evaluation.runs.run_files import PARTITION, RECIPE, ROLES, read_recipe
from fedgen.models.checkpoint_file import rebuild_model
from fedgen.recipe.recipe_errors import explain
from fedgen.recipe.recipe_objects import instantiate
from fedgen.seeds import isolated


def rebuild(run: str | Path) -> tuple[LightningModule, FederatedDataModule]:
    """The model, with the weights it is born with, and the clients of a run.

    Nothing of its trainer is made and no global generator is touched: a run of another machine's devices can be scored
    here. The clients are those of the training: of the folder's partition file where there is one, else dealt again; a
    data module without a seed of its own gets the run's.

    Args:
        run: the run folder.

    Raises:
        FileNotFoundError: if the folder holds no run.
        ValueError: if its recipe cannot be read, or its data is not a federation's. A partition file that is damaged or
            of other data is refused when the clients are first asked for.
    """
    path = Path(run) / RECIPE
    recipe = read_recipe(path)
    load_classes()
    parser = ArgumentParser(exit_on_error=False)
    for key, kind in (("model", LightningModule), ("data", LightningDataModule)):
        parser.add_subclass_arguments(kind, key, required=True, fail_untyped=False)
    try:
        settings = parser.parse_object({key: recipe[key] for key in ("model", "data")})
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path} is no recipe of `fedgen fit`: it lacks a model or data ({error!r})") from error
    except ArgumentError as error:
        raise ValueError(f"{path} cannot be made again with this fedgen: {explain(str(error))}") from error
    own = settings.data.get("init_args", {})
    if "seed" in own and own["seed"] is None:
        own["seed"] = recipe.get("seed_everything", 0)
    with isolated():
        made = instantiate(parser, settings, path)
    if not isinstance(made.data, FederatedDataModule):
        raise ValueError(f"{run} trained on a {type(made.data).__name__}, which has no clients to score against")
    restore_clients(made.data, run)
    return made.model, made.data


def rebuild_given(run: str | Path, model: str, data: str) -> tuple[LightningModule, FederatedDataModule]:
    """The model and the clients of a run that was trained in Python, of what its author names.

    The clients are those of the folder's partition file, and `seed_everything` is called with its seed first, as the
    training was.

    Args:
        run: the run folder.
        model: "my_module:make_model", a model or a function without arguments that makes one; or the class of one that
            keeps its arguments in checkpoints (`save_hyperparameters`), "my_module:MyModel".
        data: "my_module:make_data", a FederatedDataModule or a function without arguments that makes one.

    Raises:
        FileNotFoundError: if there is no such folder, or no checkpoint for the class of a model.
        ValueError: for names of nothing, or of other things, and for data of other examples or another seed.
    """
    folder = Path(run)
    if not folder.is_dir():
        raise FileNotFoundError(f"no run folder {folder}; give the folder that training wrote into")
    if (folder / RECIPE).exists():
        raise ValueError(f"{folder} has a recipe, which says what model and data are; leave --model and --data out")
    clients = clients_given(folder, data)
    found = import_object(model)
    if gives(found, LightningModule) and isinstance(found, type):
        checkpoints = list_checkpoints(folder)
        if not checkpoints:
            raise FileNotFoundError(f"{folder} has no checkpoint round=*.ckpt to make {model} of")
        return rebuild_model(found, next(iter(checkpoints.values()))), clients
    return _named(model, LightningModule), clients


def clients_given(folder: Path, data: str) -> FederatedDataModule:
    """The clients of a run that was trained in Python, of the data that its author names; see `rebuild_given`."""
    saved = folder / PARTITION
    stored = load_partition(saved).seed if saved.exists() else None
    if stored is not None:
        seed_everything(stored, verbose=False)
    clients: FederatedDataModule = _named(data, FederatedDataModule)
    if stored is not None and clients.seed != stored:
        raise ValueError(
            f"{saved} was dealt at seed {stored}, and {data} has seed {clients.seed}: give it seed={stored}"
        )
    restore_clients(clients, folder)
    return clients


def _named(text: str, kind: type) -> Any:
    """Return what a text names, called if it is a function; ValueError unless that is of a kind."""
    found = import_object(text)
    made = found() if callable(found) and not isinstance(found, (kind, type)) else found
    if not isinstance(made, kind):
        raise ValueError(
            f"{text} must be a {kind.__name__}, or a function without arguments that makes one; got {made!r}"
        )
    return made


def keep_clients(data: FederatedDataModule, run: str | Path) -> None:
    """Writes who has which examples, and who of them trains, into a run's folder, for `restore_clients`."""
    save_partition(Path(run) / PARTITION, data.partition, data.examples, data.seed, data.dealt)
    if data.split is not None:
        save_roles(Path(run) / ROLES, data.roles, [client.name for client in data.everyone])


def restore_clients(data: FederatedDataModule, run: str | Path) -> None:
    """Gives a data module the clients, and who of them trains, that a run's folder keeps; what it lacks stays.

    Raises:
        ValueError: for a damaged file of who trains; one of the clients is refused when they are first asked for.
    """
    if (saved := Path(run) / PARTITION).exists():
        data.partition = SavedPartition(saved)
    if (roles := Path(run) / ROLES).exists():
        data.roles = load_roles(roles)
