"""`fedgen fit` (LightningCLI) and the run folder it keeps."""

import inspect
import logging
import os
import re
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from pydoc import locate
from typing import Any, NoReturn

import torch
import yaml
from jsonargparse.typing import PositiveInt
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import Timer
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger
from lightning.pytorch.utilities.exceptions import MisconfigurationException, SIGTERMException
from lightning.pytorch.utilities.rank_zero import rank_zero_only
from rich.console import Console

from fedgen.callbacks import FederatedEvaluation, RoundCheckpoint, RoundProgressBar, StateReport
from fedgen.callbacks.round_progress import TITLE
from fedgen.class_paths import load_classes
from fedgen.clients import FederatedDataModule
from fedgen.evaluation import read_records
from fedgen.evaluation.names import LAST
from fedgen.evaluation.runs.rebuild import RECIPE, keep_clients
from fedgen.evaluation.runs.scores_file import SCORES_FILE
from fedgen.evaluation.tables.table import say_round
from fedgen.federated import FedAvgStrategy
from fedgen.federated.left_out import describe, read_left_out, shorten
from fedgen.federated.run_files import read_state
from fedgen.io.files import atomic_write, read_yaml, remove_unfinished, require_writable
from fedgen.own_code import warn
from fedgen.progress import make_console
from fedgen.pytorch_lightning_alias import alias_if_unused
from fedgen.recipe.recipe_files import flatten, name_of
from fedgen.recipe.recipe_objects import explain, instantiate, plain_settings, refuse
from fedgen.training.resume import (
    naming_write_errors,
    only_run,
    progress_from,
    put_in_place,
    resumes_at,
    starting_point,
)

MOST_DIFFERENCES = 8  # that the refusal of another recipe names
_NOT_RECIPE = {"config", "ckpt_path", "local_only", "centralised", "threads", "explain"}
# what may change between a run and its continuation; among it the processes, on whose number no result depends
_FREE = {
    f"trainer.{key}"
    for key in (
        "default_root_dir",
        "max_epochs",
        "max_time",
        "accelerator",
        "devices",
        "num_nodes",
        "strategy.init_args.process_group_backend",
        "enable_progress_bar",
        "profiler",
    )
}


class RecipeParser(LightningArgumentParser):
    """Lightning's parser, which says in one line what is wrong with a recipe or an option."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Ends the process with status 2, or raises where the parser was told to."""
        if not self.exit_on_error or os.environ.get("FEDGEN_TRACEBACK"):
            super().error(message, ex)
        refuse(explain(message, list(self.get_defaults().as_flat().__dict__)))

    def instantiate_classes(self, cfg: Any, **options: Any) -> Any:
        return instantiate(self, cfg)


class FedgenCLI(LightningCLI):
    """LightningCLI with the kit's defaults: one device, a run folder, round checkpoints, TensorBoard, the controls."""

    def __init__(self, args: Any = None) -> None:
        alias_if_unused()  # before the recipe's own classes are imported
        load_classes()
        self.given = list(args) if isinstance(args, list) else []
        super().__init__(
            LightningModule,
            LightningDataModule,
            subclass_mode_model=True,
            subclass_mode_data=True,
            save_config_callback=None,
            seed_everything_default=0,
            trainer_defaults={
                "devices": 1,
                "num_sanity_val_steps": 0,
                "enable_model_summary": False,
                "log_every_n_steps": 1,
            },
            parser_kwargs={
                "prog": "fedgen fit",
                "description": "Train from a recipe.",
                "usage": "fedgen fit RECIPE [--any.setting VALUE ...] [--local_only | --centralised]",
            },
            args=args,
            run=False,
            parser_class=RecipeParser,
            load_from_checkpoint_support=False,
        )

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.add_argument(
            "--local_only", action="store_true", help="control: every client trains alone, nothing is exchanged"
        )
        parser.add_argument(
            "--centralised", action="store_true", help="control: ordinary training on all clients' pooled data"
        )
        parser.add_argument(
            "--ckpt_path",
            type=str | None,
            help="checkpoint to go on from; the run's last by default, 'previous' for the one before it",
        )
        parser.add_argument("--threads", type=PositiveInt | None, help="CPU threads; one is fastest for tiny networks")
        parser.add_argument(
            "--explain",
            action="store_true",
            help="prints after the first round what clients exchange, keep and reset, and trains on",
        )

    previous = "--ckpt_path previous"  # how the checkpoint before the last is asked for

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Parse as LightningCLI does, which would warn that `sys.argv` holds arguments too."""
        self.config = parser.parse_object(args) if isinstance(args, dict) else parser.parse_args(args)

    def before_instantiate_classes(self) -> None:
        config = self.config
        if config.threads is not None:
            torch.set_num_threads(config.threads)
        if config.trainer.default_root_dir is None:
            names = [Path(str(path)).stem for path in config.get("config") or []]
            config.trainer.default_root_dir = str(Path("checkpoints") / (names[0] if names else "run"))
        apply_control(config)
        if config.trainer.enable_progress_bar is None:
            config.trainer.enable_progress_bar = True  # plain lines where there is no terminal
        self.ckpt_path = config.ckpt_path

    @property
    def asked_recipe(self) -> str:
        """The recipe by which `fedgen fit` trains this again: name or path, or the run's own where options differ."""
        paths = [str(path) for path in self.config.get("config") or []]
        if not paths:
            return ""
        options = {word.partition("=")[0].lstrip("-") for word in self.given if word.startswith("-")}
        if options - _NOT_RECIPE - {"c"}:
            return str(Path(self.config.trainer.default_root_dir) / RECIPE)
        return name_of(paths[0])

    @property
    def recipe(self) -> dict[str, Any]:
        settings = plain_settings(self.parser, self.config)
        return {key: value for key, value in settings.items() if key not in _NOT_RECIPE}

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        settings = self._get(self.config_init, "trainer")
        folder = Path(settings.default_root_dir)
        callbacks = list(settings.callbacks or [])
        kept = settings.enable_checkpointing is not False
        if kept and not any(isinstance(callback, RoundCheckpoint) for callback in callbacks):
            callbacks.append(RoundCheckpoint())
        if settings.enable_progress_bar:
            callbacks.append(RoundProgressBar())
        if self.config.explain:
            callbacks.append(StateReport())
        options: dict[str, Any] = {"callbacks": callbacks}
        if settings.logger in (None, True):
            options["logger"] = make_logger(folder)
        try:
            return super().instantiate_trainer(**options, **kwargs)
        except MisconfigurationException as error:
            if not re.search("backend found|accelerator is not available", str(error)):
                raise
            here = " and ".join(["cpu", *(["gpu"] if torch.cuda.is_available() else [])])
            raise MisconfigurationException(
                f"accelerator {settings.accelerator!r} cannot be used here, where there is {here}: pass"
                " --trainer.accelerator cpu, or run where there is one, with a PyTorch that is built for it"
            ) from error


def make_logger(folder: str | Path) -> Logger:
    """Logs of a run: TensorBoard's in `logs` where it is installed, else CSV files in `logs/version_0`, ..."""
    # a CSVLogger deletes what a folder of its own held, so that a run that goes on gets the next version
    if find_spec("tensorboard") is None:
        return CSVLogger(folder, name="logs")
    return TensorBoardLogger(folder, name="", version="logs", default_hp_metric=False)


def train(cli: FedgenCLI) -> None:
    """Trains under the run folder's rules, then prints the scores; errors of checkpoints and disks say what to do."""
    # of several processes one speaks and writes; Lightning's function has its rank where a launcher or Trainer set it
    first = not getattr(rank_zero_only, "rank", 0)
    trainer, console, recipe = cli.trainer, make_console(quiet=not first), cli.recipe
    if cli.config.explain and not isinstance(trainer.strategy, FedAvgStrategy):
        raise ValueError(
            "--explain tells what FedAvgStrategy does with a module's state, and this run trains under"
            f" {type(trainer.strategy).__name__}; leave it out"
        )
    folder = require_writable(trainer.default_root_dir)
    last, scored = folder_of(RoundCheckpoint, trainer) / LAST, folder_of(FederatedEvaluation, trainer)
    shown = [one for one in trainer.callbacks if isinstance(one, FederatedEvaluation) and one.report]
    for callback in shown:
        callback.reports_at_end = False  # here, of a finished run, too
    with naming_write_errors(folder, last), only_run(folder) if first else nullcontext():
        for place in {folder, scored} if first else ():
            remove_unfinished(place)
        check_recipe(folder, recipe, scored, last)
        path = starting_point(cli.ckpt_path, last)
        done, stopped = progress_from(path, last, cli.previous)
        finished = stopped or (trainer.max_epochs is not None and done >= trainer.max_epochs)
        if finished and path is not None and cli.ckpt_path == "previous" and first:
            put_in_place(path, last)
        if finished and path is not None and (path == last or cli.ckpt_path == "previous"):
            console.print(f"{folder} is finished: {done} rounds. Remove the folder to train again.")
            kept = read_state(last.parent) if cli.config.explain else ""
            for line in [*describe(read_left_out(last.parent)), *([f"{TITLE}:\n{kept}"] if kept else [])]:
                console.print(line, highlight=False, soft_wrap=True)
        else:
            if done:
                console.print(f"Resuming {folder} after {say_round(done - 1)}.", markup=False, soft_wrap=True)
            if first:
                write_settings(cli, folder, recipe)
            run_fit(cli, path, last, console)
            check_progress(trainer, done)
        if first and shown:
            from fedgen.reports import write_report
            from fedgen.reports.figures import report_run

            if any(callback.page for callback in shown):
                console.print(f"report: {write_report([scored])}", markup=False, highlight=False, soft_wrap=True)
            report_run(scored, console, cli.asked_recipe)


def check_progress(trainer: Trainer, before: int) -> None:
    """Refuses to call a run finished that had some rounds behind it and trained none to its end."""
    if trainer.fit_loop.epoch_progress.current.processed > before:
        return
    settings = {
        "trainer.max_epochs": (trainer.max_epochs, (None, -1)),
        "trainer.max_steps": (trainer.max_steps, (-1,)),
        "trainer.limit_train_batches": (trainer.limit_train_batches, (1.0,)),
    }
    limits = [f"{name}={value}" for name, (value, none) in settings.items() if value not in none]
    limits += ["trainer.max_time"] if any(isinstance(one, Timer) for one in trainer.callbacks) else []
    raise ValueError(
        f"no score was made, because no round was trained to its end; look at {', '.join(limits) or 'the lines above'}"
    )


def run_fit(cli: FedgenCLI, path: Path | None, last: Path, console: Console) -> None:
    """Fits; an interrupted run ends with the status that shells know: 130 for Ctrl-C, 143 for SIGTERM."""
    try:
        cli.trainer.fit(cli.model, datamodule=cli.datamodule, ckpt_path=path)
    except SystemExit as end:  # Lightning's answer to both, with status 0 for SIGTERM: who waits would call it finished
        console.print(f"Interrupted; the same command goes on {resumes_at(last)}.")
        raise SystemExit(143 if isinstance(end, SIGTERMException) else 130) from end


def folder_of(kind: type[RoundCheckpoint | FederatedEvaluation], trainer: Trainer) -> Path:
    """Return the folder that a kind of callback writes to: its own `dirpath`, or the run folder."""
    own = [callback.dirpath for callback in trainer.callbacks if isinstance(callback, kind) and callback.dirpath]
    return Path(own[0] if own else trainer.default_root_dir)


def apply_control(config: Any) -> None:
    """Turns a recipe into the control that its flags ask for, in a run folder of its own."""
    if not (config.local_only or config.centralised):
        return
    if config.local_only and config.centralised:
        raise ValueError("--local_only and --centralised are two controls; give one of them")
    strategy = config.trainer.strategy  # a name, or jsonargparse's Namespace with a class path
    if not str(getattr(strategy, "class_path", strategy)).endswith("FedAvgStrategy"):
        raise ValueError("--local_only and --centralised turn a recipe with FedAvgStrategy into its control")
    if config.local_only:
        local = strategy.init_args
        local.personal, local.optimizer_state, local.server_optimizer = ["*"], "keep", None
        config.trainer.default_root_dir += "-local_only"
        return
    if not str(config.data.class_path).endswith("FederatedDataModule"):
        raise ValueError("--centralised needs a FederatedDataModule, which pools the clients' data")
    dropped = [name for name in ("client_schedule", "server_schedule") if getattr(strategy.init_args, name, None)]
    if dropped:
        warn(
            f"--centralised trains without the strategy's {' and '.join(dropped)}, at the module's own learning rates;"
            " give the module a schedule over epochs to compare like with like"
        )
    # as many iterations an epoch as each client takes in a round
    config.data.init_args.iterations = strategy.init_args.communication_interval
    config.trainer.strategy = "auto"
    config.trainer.default_root_dir += "-centralised"


def canonical(settings: Any) -> Any:
    """The settings with each class under the name of its own module, and with arguments that it has got since."""
    if isinstance(settings, list):
        return [canonical(item) for item in settings]
    if not isinstance(settings, dict):
        return settings
    found = {key: canonical(value) for key, value in settings.items()}
    if isinstance(path := found.get("class_path"), str) and isinstance(named := locate(path), type):
        found["class_path"] = f"{named.__module__}.{named.__qualname__}"
        found["init_args"] = defaults_of(named) | (found.get("init_args") or {})
    return found


def defaults_of(named: type) -> dict[str, Any]:
    """A class's arguments that need not be given, those that it hands on to its parents too, as a recipe has them."""
    found: dict[str, Any] = {}
    for owner in named.__mro__:
        parameters = inspect.signature(owner.__init__).parameters.values()  # type: ignore[misc]
        found = {one.name: one.default for one in parameters if one.default is not one.empty} | found
        if not any(one.kind is one.VAR_KEYWORD for one in parameters):
            break
    return {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()}


def check_recipe(folder: Path, settings: dict[str, Any], scored: Path, last: Path) -> None:
    """Refuses to mix two recipes in one folder, unless nothing came of the first, which may have had a mistake."""
    path = folder / RECIPE
    if not path.exists():
        return
    stored = read_yaml(path)
    if not isinstance(stored, dict):
        raise ValueError(f"{path} is no recipe of a run; remove it, or choose another --trainer.default_root_dir")
    before, now = (flatten(canonical(recipe)) for recipe in (stored, settings))
    changed = sorted(key for key in before.keys() | now.keys() if key not in _FREE and before.get(key) != now.get(key))
    if changed and has_results(stored, folder, scored, last):
        raise MisconfigurationException(
            f"{folder} holds a run of another recipe; remove it, or choose another --trainer.default_root_dir\n"
            + "\n".join(_differences(changed, before, now))
        )


def _differences(changed: Sequence[str], before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Lines "key: old there, new now"; of another class, one for the class and none for its arguments."""
    classes = [key.removesuffix("class_path") for key in changed if key.endswith("class_path")]
    told = [key for key in changed if key.endswith("class_path") or not key.startswith(tuple(classes))]
    told = [key for key in told if not any(key.startswith(f"{one}init_args.") for one in classes)]
    lines = [f"  {key}: {_told(before, key)} there, {_told(now, key)} now" for key in told[:MOST_DIFFERENCES]]
    return [*lines, *([f"  and {len(told) - len(lines)} more"] if len(told) > len(lines) else [])]


def _told(settings: dict[str, Any], key: str) -> str:
    return shorten(repr(settings[key]), 100) if key in settings else "nothing"


def has_results(recipe: dict[str, Any], folder: Path, scored: Path, last: Path) -> bool:
    """Whether a run has left a checkpoint or a score of its model, or may have had rounds without checkpoints."""
    kept = last.exists() or any(folder.rglob("*.ckpt"))
    if kept or any(record.is_model for record in read_records(scored / SCORES_FILE)):
        return True
    trainer = recipe.get("trainer")
    return not isinstance(trainer, dict) or trainer.get("enable_checkpointing") is False


def write_settings(cli: FedgenCLI, folder: Path, recipe: dict[str, Any]) -> None:
    with atomic_write(folder / RECIPE) as file:
        file.write(yaml.safe_dump(recipe, sort_keys=False).encode())
    if isinstance(data := cli.datamodule, FederatedDataModule):
        keep_clients(data, folder)


def fit(arguments: Sequence[str]) -> None:
    # said by Lightning of every run on this torch; nothing that its user can change
    warnings.filterwarnings("ignore", message=".*LeafSpec.*", category=FutureWarning)
    # Lightning recommends another of its products at every start
    logger = logging.getLogger("lightning.pytorch.utilities.rank_zero")
    logger.addFilter(lambda line: "litlogger" not in line.getMessage())
    train(FedgenCLI(["--help" if argument == "--help-all" else argument for argument in arguments]))
