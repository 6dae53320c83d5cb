"""The model and the clients of a run, made again from the recipe that its folder keeps."""

from pathlib import Path
from typing import Any

from jsonargparse import ArgumentError, ArgumentParser
from lightning.pytorch import LightningDataModule, LightningModule

from fedgen.clients import FederatedDataModule
from fedgen.clients.partitions import SavedPartition
from fedgen.clients.three_way import load_roles
from fedgen.files import read_yaml
from fedgen.seeds import isolated

RECIPE, PARTITION, ROLES = "recipe.yaml", "partition.npz", "split.json"


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
    recipe = _read_recipe(path)
    parser = ArgumentParser(exit_on_error=False)
    for key, kind in (("model", LightningModule), ("data", LightningDataModule)):
        parser.add_subclass_arguments(kind, key, required=True, fail_untyped=False)
    try:
        settings = parser.parse_object({key: recipe[key] for key in ("model", "data")})
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path} is no recipe of `fedgen fit`: it lacks a model or data ({error!r})") from error
    except ArgumentError as error:
        raise ValueError(f"{path} cannot be made again with this fedgen: {error}") from error
    own = settings.data.get("init_args", {})
    if "seed" in own and own["seed"] is None:
        own["seed"] = recipe.get("seed_everything", 0)
    try:
        with isolated():
            made = parser.instantiate(settings)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    if not isinstance(made.data, FederatedDataModule):
        raise ValueError(f"{run} trained on a {type(made.data).__name__}, which has no clients to score against")
    restore_clients(made.data, run)
    return made.model, made.data


def restore_clients(data: FederatedDataModule, run: str | Path) -> None:
    """Gives a data module the clients, and who of them trains, that a run's folder keeps; what it lacks stays.

    Raises:
        ValueError: for a damaged file of who trains; one of the clients is refused when they are first asked for.
    """
    if (saved := Path(run) / PARTITION).exists():
        data.partition = SavedPartition(saved)
    if (roles := Path(run) / ROLES).exists():
        data.roles = load_roles(roles)


def _read_recipe(path: Path) -> Any:
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist; give the folder of a run made by `fedgen fit`")
    return read_yaml(path)
