"""`fedgen fit` (LightningCLI): the run folder it keeps, where a run goes on, and one run at a time in a folder."""

import errno
import fcntl
import inspect
import logging
import os
import re
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from pydoc import locate
from shutil import copyfile
from typing import Any, NoReturn

import torch
import yaml
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import Timer
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from lightning.pytorch.utilities.exceptions import MisconfigurationException, SIGTERMException
from lightning.pytorch.utilities.rank_zero import rank_zero_only
from rich.console import Console

from fedgen.callbacks import FederatedEvaluation, RoundCheckpoint, RoundProgressBar, StateReport
from fedgen.callbacks.round_checkpoint import link_checkpoint
from fedgen.callbacks.round_progress import TITLE
from fedgen.class_paths import load_classes
from fedgen.clients import FederatedDataModule
from fedgen.evaluation import read_records
from fedgen.evaluation.names import LAST
from fedgen.evaluation.runs.rebuild import RECIPE, keep_clients, previous_checkpoint
from fedgen.evaluation.runs.scores_file import SCORES_FILE
from fedgen.evaluation.tables.table import say_round
from fedgen.federated import FedAvgStrategy
from fedgen.federated.left_out import describe, read_left_out, shorten
from fedgen.federated.run_files import read_state
from fedgen.io.field_types import is_count
from fedgen.io.files import atomic_write, read_yaml, remove_unfinished, require_writable
from fedgen.models.checkpoint_file import read_checkpoint
from fedgen.own_code import warn
from fedgen.progress import make_console
from fedgen.pytorch_lightning_alias import alias_if_unused
from fedgen.recipe.recipe_files import find_recipe, flatten, name_of
from fedgen.recipe.recipe_objects import explain, instantiate, plain_settings, refuse
from fedgen.reports.controls import CONTROLS

MOST_DIFFERENCES = 8  # that the refusal of another recipe names
_NOT_RECIPE = {"config", "ckpt_path", "local_only", "centralised", "threads", "explain"}
# what may change between a run and its continuation; among it the processes, on whose number no result depends
_FREE = {
    "trainer.default_root_dir",
    "trainer.max_epochs",
    "trainer.max_time",
    "trainer.accelerator",
    "trainer.devices",
    "trainer.num_nodes",
    "trainer.strategy.init_args.process_group_backend",
    "trainer.enable_progress_bar",
    "trainer.profiler",
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

    def setup_parser(self, *arguments: Any) -> None:
        if "parser" not in vars(type(self)):
            super().setup_parser(*arguments)
            type(self).parser = self.parser  # alike for all recipes, and slow to make

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
            help="checkpoint to resume from; the run's last by default, 'previous' for the one before it",
        )
        parser.add_argument("--threads", type=int | None, help="CPU threads; one is fastest for tiny networks")
        parser.add_argument(
            "--explain",
            action="store_true",
            help="print what clients exchange, keep and reset, after the first round",
        )

    previous = "--ckpt_path previous"  # how the checkpoint before the last is asked for

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Parse as LightningCLI does, which would warn that `sys.argv` holds arguments too."""
        self.config = parser.parse_object(args) if isinstance(args, dict) else parser.parse_args(args)

    def before_instantiate_classes(self) -> None:
        config = self.config
        if config.threads is not None:
            if config.threads < 1:
                raise ValueError(f"threads={config.threads}: expected 1 or more CPU threads")
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
            if find_spec("tensorboard") is not None:
                options["logger"] = TensorBoardLogger(folder, name="", version="logs", default_hp_metric=False)
            else:  # which deletes what a folder of its own held: in `logs` a run that goes on gets the next version
                options["logger"] = CSVLogger(folder, name="logs")
        try:
            return super().instantiate_trainer(**options, **kwargs)
        except MisconfigurationException as error:
            if not re.search("backend found|accelerator is not available", str(error)):
                raise
            here = " and ".join(["cpu", *(["gpu"] if torch.cuda.is_available() else [])])
            raise MisconfigurationException(
                f"accelerator {settings.accelerator!r} is not available here, only {here}: pass --trainer.accelerator"
                " cpu, or use a machine that has one, with a PyTorch built for it"
            ) from error


def train(cli: FedgenCLI) -> None:
    """Trains under the run folder's rules, then prints the scores; errors of checkpoints and disks say what to do."""
    # of several processes one speaks and writes; Lightning's function has its rank where a launcher or Trainer set it
    first = not getattr(rank_zero_only, "rank", 0)
    trainer, console, recipe = cli.trainer, make_console(quiet=not first), cli.recipe
    if cli.config.explain and not isinstance(trainer.strategy, FedAvgStrategy):
        raise ValueError(
            "--explain shows what FedAvgStrategy does with a module's state, but this run uses"
            f" {type(trainer.strategy).__name__}; omit it"
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
        f"nothing was scored, because no round was completed; check {', '.join(limits) or 'the lines above'}"
    )


def run_fit(cli: FedgenCLI, path: Path | None, last: Path, console: Console) -> None:
    """Fits; an interrupted run ends with the status that shells know: 130 for Ctrl-C, 143 for SIGTERM."""
    try:
        cli.trainer.fit(cli.model, datamodule=cli.datamodule, ckpt_path=path)
    except SystemExit as end:  # Lightning's answer to both, with status 0 for SIGTERM: who waits would call it finished
        console.print(f"Interrupted; the same command resumes {resumes_at(last)}.")
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
        raise ValueError("--local_only and --centralised need a recipe with FedAvgStrategy")
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
        raise ValueError(f"{path} is not a run's recipe; remove it, or choose another --trainer.default_root_dir")
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
    if brought := find_recipe(cli.asked_recipe):
        for path in brought.parent.glob(f"{brought.stem}.*.jsonl"):  # the scores of its controls
            (folder / CONTROLS).mkdir(exist_ok=True)
            copyfile(path, folder / CONTROLS / path.name.removeprefix(f"{brought.stem}."))
    if isinstance(data := cli.datamodule, FederatedDataModule):
        keep_clients(data, folder)


def fit(arguments: Sequence[str]) -> None:
    # said by Lightning of every run on this torch; nothing that its user can change
    warnings.filterwarnings("ignore", message=".*LeafSpec.*", category=FutureWarning)
    # Lightning recommends another of its products at every start
    logger = logging.getLogger("lightning.pytorch.utilities.rank_zero")
    logger.addFilter(lambda line: "litlogger" not in line.getMessage())
    train(FedgenCLI(["--help" if argument == "--help-all" else argument for argument in arguments]))


# ---- where a run goes on, and one run at a time in a folder ----

LOCK = ".run.lock"
# what a file system may answer once a run has begun, and what to do about it
UNWRITABLE = {
    errno.ENOSPC: "no space left for {}; free some",
    errno.EDQUOT: "the quota is used up for {}; free some space",
    errno.EFBIG: "a file is larger than allowed for {}; raise the limit (ulimit -f), or use another file system",
    errno.EROFS: "{} is now read-only; make it writable",
}


def starting_point(asked: str | None, last: Path) -> Path | None:
    """The checkpoint to go on from: a path, "last", "previous", or for None the last if any; None to start anew."""
    if asked == "previous":
        return previous_checkpoint(last.parent)
    if asked not in (None, "last"):
        return Path(asked)
    if last.exists():
        return last
    if asked == "last":
        raise FileNotFoundError(f"{last} does not exist, so there is nothing to resume; omit ckpt_path to start")
    return None


def progress_of(path: Any) -> tuple[int, bool]:
    """Return how many rounds a checkpoint has behind it, and whether EarlyStopping ended the run there."""
    saved = read_checkpoint(path)
    if "loops" not in saved:
        raise ValueError(f"{path} holds a model without training progress, so it cannot be resumed")
    try:
        states = [state for state in saved.get("callbacks", {}).values() if "wait_count" in state]
        stopped = any(state["stopped_epoch"] or state["wait_count"] >= state["patience"] for state in states)
        done = saved["loops"]["fit_loop"]["epoch_progress"]["current"]["processed"]
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} has lost its training progress ({error!r}) and cannot be resumed") from error
    if not is_count(done):
        raise ValueError(f"{path} has {done!r} rounds behind it, so it cannot be resumed")
    return done, stopped


def progress_from(path: Path | None, last: Path, previous: str) -> tuple[int, bool]:
    """`progress_of` the checkpoint that a run goes on from, if any; of a damaged last one it says what can be done."""
    if path is None:
        return 0, False
    try:
        return progress_of(path)
    except ValueError as error:
        if path != last:
            raise
        try:
            remedy = f"{previous} resumes from {previous_checkpoint(last.parent).name}, the one before it"
        except FileNotFoundError:
            remedy = f"no earlier checkpoint is left: remove {last.parent} to train again"
        raise ValueError(f"{error}; {remedy}") from error


def put_in_place(finished: Path, last: Path) -> None:
    """Gives a finished run, which training writes no other, a last checkpoint in the place of a damaged one."""
    try:
        read_checkpoint(last)
    except (OSError, ValueError):
        link_checkpoint(finished, last)


def resumes_at(last: Path) -> str:
    if not last.exists():
        return "from the start"
    try:
        done, _ = progress_of(last)
    except ValueError:  # damaged, and the run that went on from the one before it has not replaced it yet
        return "where this run resumed"
    return f"after {say_round(done - 1)}" if done else "from the start"


@contextmanager
def naming_write_errors(folder: Path, last: Path) -> Iterator[None]:
    """Says where a run goes on if its disk is full or can no longer be written, once: loggers' threads keep quiet."""
    shown = threading.excepthook

    def show(failure: threading.ExceptHookArgs) -> None:
        error = failure.exc_value
        if not isinstance(error, OSError) or error.errno not in UNWRITABLE:  # the main thread raises the same
            shown(failure)

    threading.excepthook = show
    try:
        yield
    except OSError as error:
        if error.errno not in UNWRITABLE:
            raise
        inside = error.filename is None or Path(error.filename).resolve().is_relative_to(folder.resolve())
        what = UNWRITABLE[error.errno].format(folder if inside else error.filename)
        raise OSError(f"{what}, and the same command resumes {resumes_at(last)}") from error
    finally:
        threading.excepthook = shown


@contextmanager
def only_run(folder: Path) -> Iterator[None]:
    """Keeps other runs out of a folder, with BlockingIOError; a killed run leaves the file behind and no lock."""
    descriptor = _lock(folder / LOCK)
    try:
        yield
    finally:
        (folder / LOCK).unlink(missing_ok=True)
        os.close(descriptor)


def _lock(path: Path) -> int:
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(descriptor)
            raise BlockingIOError(
                f"another run is active in {path.parent}; wait for it, or choose another --trainer.default_root_dir"
            ) from error
        except OSError:  # not every network file system has locks
            return descriptor
        if path.exists() and os.path.samestat(os.fstat(descriptor), path.stat()):
            return descriptor
        os.close(descriptor)  # a run that has just ended took the file away between the two calls
