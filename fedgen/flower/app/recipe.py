"""A recipe's two halves in a deployment: what the server makes of it, and what each client does."""

import copy
import math
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from fedgen.evaluation.score_choice import choose
from fedgen.flower.client.local_data import FOLDERS, NUMBER, NUMBERS, READING, NodeData, place_of
from fedgen.io.files import yaml_in
from fedgen.io.regular_files import read_regular

STRATEGY, EVALUATION, FINE_TUNING = "FedAvgStrategy", "FederatedEvaluation", "DistributedFineTuning"
_OF_CLIENTS = ("batch_size", "held_out", "seed", "iterations")
_AGAIN = 2  # rounds that are done again elsewhere than on a CPU come out otherwise: as many questions once more
_OF_MESSAGE = 3  # questions of a loss that is asked once in a round


def without_unmeasured(recipe: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The recipe with an evaluation of what a deployment measures, or none, and what it does not measure."""
    found, left = copy.deepcopy(dict(recipe)), []
    trainer = found.get("trainer") or {}
    for callback in list(trainer.get("callbacks") or []):
        own = callback.get("init_args") or {}
        if not str(callback.get("class_path")).endswith(EVALUATION) or "scores" not in own:
            continue
        asked = [own["scores"]] if isinstance(own["scores"], (str, Mapping)) else list(own["scores"])
        chosen = {place: choose(score) for place, score in enumerate(asked)}
        left += [choice.name for choice in chosen.values() if not choice.definition.is_deployed]
        own["scores"] = [asked[place] for place, choice in chosen.items() if choice.definition.is_deployed]
        if not own["scores"] and not own.get("presets"):
            trainer["callbacks"].remove(callback)
    return found, left


def read_settings(path: Path) -> dict[str, Any]:
    """The settings of a deployed recipe."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist; `fedgen deploy RECIPE DIR` writes it")
    return copy.deepcopy(_settings_in(read_regular(path), path))


@lru_cache(maxsize=4)  # a client reads its recipe more than once for a message, and its worker for each
def _settings_in(content: bytes, path: Path) -> dict[str, Any]:
    found = spelled_out(yaml_in(content, path))
    if not isinstance(found, dict) or not all(
        isinstance(found.get(part), dict) for part in ("trainer", "model", "data")
    ):
        raise ValueError(f"{path} is not a recipe: it needs trainer, model and data")
    return found


def spelled_out(recipe: Any) -> Any:
    """The recipe with a class_path where it names a class alone, and a list of callbacks where it has one."""
    if not isinstance(recipe, Mapping):
        return recipe
    found = copy.deepcopy(dict(recipe))
    for place, key in ((found, "model"), (found, "data"), (found.get("trainer"), "strategy")):
        if isinstance(place, dict) and isinstance(value := place.get(key), str) and (key != "strategy" or "." in value):
            place[key] = {"class_path": value}
    if isinstance(trainer := found.get("trainer"), dict) and (given := trainer.get("callbacks")):
        several = given if isinstance(given, list) else [given]
        trainer["callbacks"] = [{"class_path": one} if isinstance(one, str) else one for one in several]
    own = (found["data"] or {}).get("init_args") if isinstance(found.get("data"), dict) else None
    for key in ("data", "evaluation_data"):
        if isinstance(own, dict) and isinstance(own.get(key), str):
            own[key] = {"class_path": own[key]}
    return found


def deployable(recipe: Mapping[str, Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """The recipe with each client's data, of this class and settings, in place of the federation's; or ValueError."""
    # where that is the recipe's own class, how the recipe reads it (labels, collate_fn, num_workers, ...) is kept
    if recipe.get("seed_everything") is True:
        raise ValueError(
            "seed_everything=True draws another seed in every process, and a client's process ends with each message:"
            " it would train on images that it held out before; give a number"
        )
    strategy = (recipe.get("trainer") or {}).get("strategy")
    federated = isinstance(strategy, dict) and str(strategy.get("class_path")).endswith(STRATEGY)
    if federated == asks_clients(recipe):
        raise ValueError(
            "only recipes that train with FedAvgStrategy can be deployed, and DistributedFineTuning without it in the"
            " forms 'exact' and 'message'"
        )
    if isinstance(strategy, dict) and (strategy.get("init_args") or {}).get("speeds"):
        raise ValueError(
            "trainer.strategy.init_args.speeds simulates how long clients' turns take, and a deployment's clients take"
            " their own time; remove it"
        )
    module = recipe.get("data") or {}
    if not str(module.get("class_path")).endswith("FederatedDataModule"):
        raise ValueError("only recipes whose data is a FederatedDataModule can be deployed")
    own = module.get("init_args") or {}
    if own.get("split"):
        raise ValueError(
            "data.init_args.split keeps clients from training, and in a deployment whoever is there trains; remove it"
        )
    place_of(data)
    result = copy.deepcopy(dict(recipe))
    kept = {name: own[name] for name in _OF_CLIENTS if name in own}
    kept |= {name: copy.deepcopy(value) for name, value in _reading_of(own, data).items()}
    result["data"] = {
        "class_path": "fedgen.flower.LocalDataModule",
        "init_args": {"data": copy.deepcopy(dict(data)), **kept},
    }
    return result


def _reading_of(own: Mapping[str, Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """Return how a recipe reads its data: of another class than the clients', the processes that read alone."""
    is_own = data.get("class_path") == (own.get("data") or {}).get("class_path")
    found = {name: own[name] for name in (READING if is_own else ("num_workers",)) if own.get(name) is not None}
    if not isinstance(found.get("labels", ""), (str, Mapping)):
        raise ValueError(
            "data.init_args.labels lists a label for every item of all clients, and each client has its own items: give"
            " the name of an attribute or column, or a function of an item's position"
        )
    if isinstance(shown := found.get("evaluation_data"), Mapping):
        found["evaluation_data"] = without_place(shown)
    return found


def without_place(data: Mapping[str, Any]) -> dict[str, Any]:
    """A class of data without the arguments that each client's node gives."""
    given = data.get("init_args") or {}
    kept = {name: value for name, value in given.items() if name not in (*FOLDERS, NUMBER, NUMBERS)}
    return {"class_path": data["class_path"], **({"init_args": kept} if kept else {})}


def asks_clients(settings: Mapping[str, Any]) -> bool:
    """Whether a server trains alone on a loss that asks clients: fine-tuning in the form "exact" or "message"."""
    model = settings.get("model") or {}
    form = (model.get("init_args") or {}).get("form", "exact")
    return str(model.get("class_path")).endswith(FINE_TUNING) and form != "local"


def evaluations(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a recipe's evaluation; none where it has none."""
    for callback in settings["trainer"].get("callbacks") or []:
        if str(callback.get("class_path")).endswith(EVALUATION):
            return dict(callback.get("init_args") or {})
    return {}


def evaluations_in(settings: Mapping[str, Any]) -> float:
    """Return how many sets of generated images a recipe's run scores at most; infinite without a number of rounds."""
    found = evaluations(settings)
    often = _rounds(settings) / int(found.get("every_n_rounds", 10))
    return _AGAIN * (bool(found.get("at_start")) + 1 + (math.ceil(often) if math.isfinite(often) else often))


def questions_in(settings: Mapping[str, Any]) -> float:
    """Return how many questions a recipe's loss at the server asks at most in a run; infinite likewise."""
    iterations = ((settings.get("data") or {}).get("init_args") or {}).get("iterations")
    return _AGAIN * _rounds(settings) * max(math.inf if iterations is None else int(iterations), _OF_MESSAGE)


def _rounds(settings: Mapping[str, Any]) -> float:
    rounds = (settings.get("trainer") or {}).get("max_epochs")
    return math.inf if rounds in (None, -1) else int(rounds)


def for_client(settings: Mapping[str, Any], node: NodeData, name: str, features: Path) -> dict[str, Any]:
    """Settings with which one client takes turns; `features` is the folder that keeps its images' features."""
    found = copy.deepcopy(dict(settings))
    found["data"]["init_args"] = {**node.fill(found["data"]["init_args"]), "name": name, "features": str(features)}
    trainer = found["trainer"]
    trainer |= {"callbacks": [], "logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    model = found["model"]
    if asks_clients(settings):
        own = model["init_args"]
        kept = {"objective": own.get("objective"), "form": own.get("form", "exact")}
        kept |= {"batch": own["batch"]} if "batch" in own else {}
        found["model"] = {"class_path": "fedgen.flower.Answering", "init_args": kept}
        return found
    if str(model.get("class_path")).endswith(FINE_TUNING):
        model["init_args"]["server_data"] = None
    trainer["strategy"]["class_path"] = "fedgen.flower.TurnStrategy"
    return found


def for_server(settings: Mapping[str, Any], output: Path, hidden: bool = False) -> dict[str, Any]:
    """Settings with which the server runs the federation; whether single updates are `hidden` from it."""
    found = copy.deepcopy(dict(settings))
    given = {name: value for name, value in found["data"]["init_args"].items() if name in _OF_CLIENTS}
    found["data"] = {"class_path": "fedgen.flower.RemoteClients", "init_args": given}
    found["trainer"]["default_root_dir"] = str(output)
    if not asks_clients(settings):
        own = "secure_aggregation.secure_strategy.SecureStrategy" if hidden else "server.flower_strategy.FlowerStrategy"
        found["trainer"]["strategy"]["class_path"] = f"fedgen.flower.{own}"
    for callback in found["trainer"].get("callbacks") or []:
        if str(callback.get("class_path")).endswith(EVALUATION):
            callback["class_path"] = "fedgen.flower.server.remote_evaluation.RemoteEvaluation"
    return found
