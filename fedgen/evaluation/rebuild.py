"""The model and the clients of a run, made again from the recipe that its folder keeps."""

from pathlib import Path

import yaml
from jsonargparse import ArgumentError, ArgumentParser
from lightning.pytorch import LightningDataModule, LightningModule

from fedgen.clients import FederatedDataModule
from fedgen.seeds import isolated

RECIPE = "recipe.yaml"


def rebuild(run: str | Path) -> tuple[LightningModule, FederatedDataModule]:
    """The model, with the weights it is born with, and the clients of a run.

    Nothing of its trainer is made and no global generator is touched: a run of another machine's devices can be scored
    here. A data module without a seed of its own gets the run's, so the clients are those of the training.

    Args:
        run: the run folder.

    Raises:
        FileNotFoundError: if the folder holds no run.
        ValueError: if its recipe cannot be read, or its data is not a federation's.
    """
    path = Path(run) / RECIPE
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist; give the folder of a run made by `fedgen fit`")
    try:
        recipe = yaml.safe_load(path.read_text())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(
            f"{path} is damaged ({' '.join(str(error).split())}); copy it again, or train again"
        ) from error
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
    with isolated():
        made = parser.instantiate(settings)
    if not isinstance(made.data, FederatedDataModule):
        raise ValueError(f"{run} trained on a {type(made.data).__name__}, which has no clients to score against")
    return made.model, made.data
