"""The evaluation at rounds: scores in both aggregates, logged, stored, and there for stock callbacks to monitor."""

import math
import platform
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint, LambdaCallback, ModelCheckpoint
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from torch import Tensor

from fedgen import __version__
from fedgen.callbacks.round_checkpoint import RoundCheckpoint, refuse_restart
from fedgen.callbacks.round_progress import paused
from fedgen.callbacks.score_logging import Monitoring, gate, log_grid, log_scores, release, watchers
from fedgen.clients import FederatedDataModule
from fedgen.data.optional_attributes import optional
from fedgen.data.text import decode_all
from fedgen.embeddings import Embedding, FeatureCache
from fedgen.evaluation import Evaluation, Evaluator, append_records, checkpoint_name, drop_from, mixture
from fedgen.evaluation.image_sampling import Sample, inside
from fedgen.evaluation.names import LOCAL_NOTE
from fedgen.evaluation.own_models import OwnModels, Personal
from fedgen.evaluation.panels import Panel
from fedgen.evaluation.records import BALANCE, BALANCED
from fedgen.evaluation.runs.evaluate_run import refuse_mixture
from fedgen.evaluation.runs.rebuild import RECIPE, keep_clients, tensors_in_place
from fedgen.evaluation.runs.scores_file import SCORES_FILE
from fedgen.evaluation.splits import Split
from fedgen.evaluation.tables.partition_table import PartitionSummary
from fedgen.evaluation.tables.table import evaluation_line, headline, join_parts, say_round
from fedgen.federated import FedAvgStrategy
from fedgen.federated.lightning.lightning_internals import checkpoint_of
from fedgen.federated.run_files import write_times
from fedgen.images import save_png, tile, tile_titled
from fedgen.io.files import atomic_write, remove_unfinished, require_writable, write_json
from fedgen.models.optional_hooks import FederatedModule, TurnTakingStrategy, data_module_of
from fedgen.own_code import warn
from fedgen.progress import make_console
from fedgen.ranks import together
from fedgen.reports.contents import KEPT, REAL
from fedgen.seeds import isolated

if TYPE_CHECKING:
    from fedgen.reports.page import RunPage


SIDE = 32  # pixels that smaller images are enlarged to
REAL_ROWS, REAL_COLUMNS = 10, 10


def sample_picture(generated: Tensor, real: Tensor | None, heading: str = "generated") -> Tensor:
    """A grid of generated images and one row of real ones, each under its heading."""
    columns = math.ceil(len(generated) ** 0.5)
    parts = [(heading, generated)]
    if real is not None and len(real):
        parts.append(("real, of the same clients in turn", real[:columns]))
    return tile_titled(parts, columns, SIDE)


class FederatedEvaluation(Callback):
    """Scores the model against every client and their pool, every few rounds and at the last.

    Each evaluation appends records to `scores.jsonl`, writes a grid `samples/round=00012.png` of generated images and
    a row of real ones (of texts a .txt file, one a line), and logs every column: "fid_avg", "fid_all", "kid_avg", ...;
    "report/..." on held-out images, or "part_val/...", "unpart/..." and "gap/participation/..." where the data keep
    clients from training. Columns of further embeddings begin with the embedding's name, but for those of presets such
    as "cmmd". With a simulated clock it writes `simulated_time.jsonl`. `ModelCheckpoint(monitor=...)` and
    `EarlyStopping(monitor=...)` see only evaluated rounds. Scores with `higher_is_better`, such as "recall" or "ll",
    need `mode="max"`, all others `mode="min"`; do not monitor "memorisation", which is best at 0.5.

    Training does not change: random streams and modes are restored. The weights scored are those that a checkpoint of
    the round holds, which callbacks such as `EMAWeightAveraging` replace. Without rounds, a round is an epoch. If
    training is local only, the mixture of the clients' models is scored. If clients keep tensors that change scores,
    each participating client is scored with its own model, and no column is of all, as no single model meets the pool:
    see `evaluation.own_models`. Several processes share the work; results are those of one.

    Args:
        every_n_rounds: rounds between evaluations; the last round is always evaluated.
        embeddings: names, embeddings, or {"name": ..., options of `load_embedding`}; the first gives the columns
            without a prefix. None for efficientnet-lite0, or for none where presets are given.
        num_images: generated images per split.
        scores: names, or {"name": ..., options}, measured on each embedding; see `evaluation.Evaluator`.
        weights: "examples" (n_i / n), "uniform", or one number per client, as for `evaluation.Evaluator`.
        at_start: whether to evaluate the untrained model too, as round -1.
        grid: generated images in a grid; 0 draws none.
        dirpath: where `scores.jsonl` and `samples/` go; the trainer's `default_root_dir` by default. A `fast_dev_run`
            writes into a folder of that name in it.
        cache_folder: keeps the real images' features on disk between runs.
        batch_size: images embedded at once.
        seed: of the generated images; None takes the seed of `seed_everything`, else 0.
        aggregates: beside avg, all and worst, e.g. ("power-2", "pct95"); as for `evaluation.Evaluator`.
        presets: scores in an embedding of their own: "fid", "kid", "fd-dinov2", "cmmd", "is", "fcd", or {"name": ...,
            "weights": a local file}.
        controls: whether to score, beside the floor, the other real images that three-way splits score as if
            generated; see `evaluation.federation_splits`.
        report: whether to print a line per evaluation, and the run's tables when fitting ends, and to draw its
            curves.
        page: whether to write `report.html`, a page of the run (docs/report.md), after each evaluation and when fitting
            ends. With `grid` it shows real images of clients too, which `real.png` keeps.

    Attributes:
        headline: the newest score of the column that a callback monitors, or of the first: "fid_all 9.1±0.3".
        reports_at_end: whether the tables are printed here; code that prints them itself sets it to False.

    Raises:
        TypeError: before training, for a model without `sample` (or `log_prob`, for the score "ll", or
            `example_losses`, for "loss"), or data that is not a FederatedDataModule.
        ValueError: before training, for images that an embedding or a score cannot take, an unknown monitor,
            or a second FederatedEvaluation. If only training shows that a monitored column is missing, the first
            evaluation raises it.
        PermissionError: before training, if the folder cannot be written.
        FileExistsError: before training, if the folder holds a run and training would begin at round 0: resume with
            `trainer.fit(..., ckpt_path="last")`, or choose another folder.

    Examples:
        >>> from fedgen import FederatedEvaluation
        >>> callback = FederatedEvaluation(every_n_rounds=50, embeddings=["pixels"], num_images=1000, scores=["fid"])
        >>> callback.every_n_rounds
        50
    """

    def __init__(
        self,
        every_n_rounds: int = 10,
        embeddings: Sequence[str | dict[str, Any] | Embedding] | None = None,
        num_images: int = 10_000,
        scores: Sequence[str | dict[str, Any]] = ("fid", "kid"),
        weights: str | Sequence[float] = "examples",
        at_start: bool = False,
        grid: int = 64,
        dirpath: str | Path | None = None,
        cache_folder: str | Path | None = None,
        batch_size: int = 64,
        seed: int | None = None,
        aggregates: Sequence[str] = (),
        presets: Sequence[str | dict[str, Any]] = (),
        controls: bool = False,
        report: bool = True,
        page: bool = True,
    ) -> None:
        if every_n_rounds < 1:
            raise ValueError(f"every_n_rounds={every_n_rounds}: evaluate every 1 or more rounds")
        self.every_n_rounds, self.at_start, self.grid, self.report = every_n_rounds, at_start, grid, report
        self.settings: dict[str, Any] = {"embeddings": embeddings, "num_images": num_images, "scores": scores}
        self.settings |= {"weights": weights, "batch_size": batch_size, "seed": seed, "aggregates": aggregates}
        self.settings |= {"presets": presets, "controls": controls}
        self.dirpath, self.cache_folder, self.page = dirpath, cache_folder, page
        self.evaluated_round: int | None = None
        self.reports_at_end, self.headline = True, ""
        self.evaluator: Evaluator  # made by `setup`, as the models
        self._models: OwnModels
        self._page: RunPage | None = None
        self._watchers: list[Any] = []
        self._last_round: int | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Makes the evaluator, which checks all that can be checked without sampling."""
        if stage != "fit":
            return
        if sum(isinstance(callback, FederatedEvaluation) for callback in trainer.callbacks) > 1:
            raise ValueError("two FederatedEvaluation callbacks would write the same columns; give one all embeddings")
        # Behind averages of weights, which take in a round in the same hook as it is scored.
        others = [callback for callback in trainer.callbacks if callback is not self]
        behind = [others.index(one) + 1 for one in _swapping(trainer) if not isinstance(one, Checkpoint)]
        place = max([trainer.callbacks.index(self), *behind])
        trainer.callbacks = [*others[:place], self, *others[place:]]
        require_writable(self._folder(trainer))
        self.evaluator = self._make_evaluator(trainer)
        self.evaluator.sampler_of(pl_module)
        self.evaluator.asked_of(pl_module)
        self._models = OwnModels(self.evaluator)
        directions = self.evaluator.directions()
        _warn_of_modes(watchers(trainer.callbacks, list(directions)), directions)

    def _make_evaluator(self, trainer: Trainer) -> Evaluator:
        data = data_module_of(trainer)
        if not isinstance(data, FederatedDataModule):
            raise TypeError(
                "FederatedEvaluation scores against clients: call trainer.fit(model, datamodule) with a"
                f" FederatedDataModule, got {type(data).__name__}"
            )
        cache = FeatureCache(self.cache_folder) if self.cache_folder is not None else None
        return Evaluator(data, cache=cache, device=trainer.strategy.root_device, **self.settings)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Tries the model out, drops scores that will be measured again, stores the floor, maybe scores round -1."""
        refuse_restart(trainer, self._folder(trainer))
        first = trainer.current_epoch
        self.evaluated_round = self._last_round = None
        sample, _ = sampler_in(trainer, self.evaluator, pl_module)
        self.evaluator.try_out(sample, **self.evaluator.asked_of(pl_module))
        personal = personal_panels(trainer, self._models, pl_module, self._remote_tensors(trainer))
        self._watchers = watchers(trainer.callbacks, self._models.column_names(personal))
        gate(self._watchers, self._is_fresh)  # no closure, as callbacks are pickled while training runs
        with paused(trainer), together():
            floor = self.evaluator.floor()
        if trainer.is_global_zero:
            remove_unfinished(self._folder(trainer))
            path = self._folder(trainer) / SCORES_FILE
            if (rounds := drop_from(path, first)) and first:
                rank_zero_info(f"{path}: scores of rounds {rounds} are removed: training resumes from round {first}")
            append_records(path, floor)
            self._keep_times(trainer)
            self._keep_clients(trainer)
        if self.at_start and first == 0:
            self._evaluate(trainer, pl_module, -1)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Evaluates, if the round is due and whole."""
        if optional(trainer.strategy, TurnTakingStrategy, "in_round"):
            return
        round = self._last_round = trainer.current_epoch
        if (round + 1) % self.every_n_rounds == 0 or round + 1 == trainer.max_epochs or trainer.should_stop:
            values = self._evaluate(trainer, pl_module, round)
            for column, value in values.items():
                pl_module.log(column, value, on_step=False, on_epoch=True, logger=False)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Evaluates the last round, if training was stopped early after one that was not due."""
        if self._last_round is None or self._last_round == self.evaluated_round:
            return
        if not optional(trainer.strategy, TurnTakingStrategy, "in_round"):
            values = self._evaluate(trainer, pl_module, self._last_round)
            trainer.callback_metrics.update({column: torch.tensor(value) for column, value in values.items()})

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Writes the run's page and prints what it has shown, as `fedgen fit` does."""
        if self.evaluated_round is None or not trainer.is_global_zero:
            return
        written = self._page is not None and self._page.write()
        if self.report and self.reports_at_end:
            from fedgen.reports.figures import report_run

            report_run(self._folder(trainer))
            if self._page is not None and written:
                make_console().print(f"report: {self._page.path}", markup=False, soft_wrap=True)

    def _evaluate(self, trainer: Trainer, pl_module: LightningModule, round: int) -> dict[str, float]:
        sample, note = sampler_in(trainer, self.evaluator, pl_module)
        is_first = trainer.is_global_zero
        keeps = any(isinstance(callback, RoundCheckpoint) for callback in trainer.checkpoint_callbacks)
        checkpoint = checkpoint_name(round) if keeps and round >= 0 else None
        optimised_on = list(optional(pl_module, FederatedModule, "optimised_on"))
        with paused(trainer), together(), _as_saved(trainer, pl_module):
            strategy = trainer.strategy
            personal: Personal = {}
            if remote := self._remote_tensors(trainer):
                personal_panels(trainer, self._models, pl_module, remote)  # which refuses scores that depend on them
            elif isinstance(strategy, FedAvgStrategy) and not strategy.local_only:
                personal = strategy.personal_tensors
            details: dict[str, Any] = {"checkpoint": checkpoint, "optimised_on": optimised_on, "note": note}
            if own := self._models.check(pl_module, personal):
                evaluation = self._models.evaluate(pl_module, sample, personal, own, round, **details)
            else:
                evaluation = self.evaluator.evaluate(sample, round, **details, **self.evaluator.asked_of(pl_module))
            self._print_line(evaluation, round, is_first)
        if is_first:
            append_records(self._folder(trainer) / SCORES_FILE, evaluation.records)
            self._keep_times(trainer)
            self._show(trainer, evaluation, round)
            if self._page is not None:
                self._page.write(live=True)
        self.evaluated_round = round
        values = {self.evaluator.plan.columns.name(record): record.value for record in evaluation.records}
        watchers(trainer.callbacks, list(values))  # what depends on personal tensors may show in training alone
        return values

    def _remote_tensors(self, trainer: Trainer) -> str:
        """Return where tensors of single clients are, and a remedy, if not in this process; else ""."""
        if trainer.world_size == 1:
            return ""
        return f"are on {trainer.world_size} processes: pass Trainer(devices=1, num_nodes=1), share them"

    def _print_line(self, evaluation: Evaluation, round: int, is_first: bool) -> None:
        monitored = next((watcher.monitor for watcher in self._watchers), None)
        self.headline = headline(evaluation.records, self.evaluator.plan.columns, monitored)
        if self.report and is_first:
            parts = evaluation_line(evaluation.records, self.evaluator.floor(), self.evaluator.plan.columns, monitored)
            console = make_console()
            line = join_parts(say_round(round), parts, console.width)
            console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _show(self, trainer: Trainer, evaluation: Evaluation, round: int) -> None:
        log_scores(trainer.loggers, evaluation.records, self.evaluator.plan.columns, round, self.evaluator.floor())
        images = evaluation.images[: self.grid]
        path = self._folder(trainer) / "samples" / (f"round={round:05d}.png" if round >= 0 else "before.png")
        if images.ndim == 4 and images.shape[1] in (1, 3) and len(images):
            picture = sample_picture(images, self._real_images(len(images)), f"generated, {say_round(round)}")
            save_png(path, picture)
            log_grid(trainer.loggers, picture, round)
        elif images.dtype == torch.int64 and len(images):
            with atomic_write(path.with_suffix(".txt")) as file:
                file.write("".join(f"{text}\n" for text in decode_all(images)).encode())

    def _real_images(self, count: int) -> Tensor | None:
        """Return as many of the clients' images as may stand beside generated ones; None where they are not here."""
        return self.evaluator.splits[0].in_turn(count)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        release(self._watchers)
        self._watchers = []

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self.teardown(trainer, pl_module, "fit")

    def _is_fresh(self, trainer: Trainer) -> bool:
        return self.evaluated_round == trainer.current_epoch

    def _folder(self, trainer: Trainer) -> Path:
        own = Path(self.dirpath or trainer.default_root_dir)
        return own / "fast_dev_run" if trainer.fast_dev_run else own  # a trial leaves a run's scores alone

    def _keep_clients(self, trainer: Trainer) -> None:
        """Writes who the clients were, for scoring the run again, and what its page alone shows of them."""
        folder, data = self._folder(trainer), data_module_of(trainer)
        is_here, self._page = isinstance(data, FederatedDataModule), None
        if is_here and not (Path(trainer.default_root_dir) / RECIPE).exists():
            keep_clients(data, folder)
        if self.page and not trainer.fast_dev_run:
            # what makes pages is imported by runs that show one, and not by every command that knows callbacks
            from fedgen.reports.page import RunPage

            self._page = RunPage(folder)
            with isolated():
                keep(folder, data, self.evaluator.splits if is_here else (), self.grid > 0)

    def _keep_times(self, trainer: Trainer) -> None:
        """Writes the rounds' simulated seconds, if there are any, so that scores can be drawn against them."""
        clock = trainer.strategy.simulated_clock if isinstance(trainer.strategy, FedAvgStrategy) else None
        write_times(self._folder(trainer), [] if clock is None else clock.rounds)


def sampler_in(trainer: Trainer, evaluator: Evaluator, module: LightningModule) -> tuple[Sample, str]:
    """Return the model's sampler, or that of the mixture of the clients' models, and a note that says so."""
    sample, strategy = evaluator.sampler_of(module), trainer.strategy
    if not optional(strategy, TurnTakingStrategy, "local_only"):
        return sample, ""
    if trainer.world_size > 1:
        raise MisconfigurationException(
            f"clients that train alone are on {trainer.world_size} processes, and their mixture is sampled in one:"
            " pass Trainer(devices=1, num_nodes=1)"
        )
    refuse_mixture(evaluator)
    weights = evaluator.client_weights()
    samplers = [inside(partial(strategy.client_model, k), sample) for k in range(len(weights))]
    return mixture(samplers, weights), LOCAL_NOTE


def personal_panels(trainer: Trainer, models: OwnModels, module: LightningModule, remote: str) -> list[Panel]:
    """The embeddings whose scores depend on tensors that clients keep, where something is exchanged beside them."""
    strategy = trainer.strategy
    if not isinstance(strategy, FedAvgStrategy) or strategy.local_only or not strategy.own_tensors:
        return []
    found = models.hanging_on(module, strategy.own_tensors)
    models.refuse(found)
    if found and remote:
        names = ", ".join(list(strategy.own_tensors)[:3])
        raise MisconfigurationException(
            f"scores depend on tensors that clients keep to themselves ({names}, ...), which {remote}, or leave"
            " these scores out"
        )
    return found


def _swapping(trainer: Trainer) -> list[Callback]:
    """The callbacks that may put other weights than the module's into checkpoints, such as an average."""
    return [callback for callback in trainer.callbacks if is_overridden("on_save_checkpoint", callback, Callback)]


def _as_saved(trainer: Trainer, module: LightningModule) -> AbstractContextManager[None]:
    """The module with the weights that a checkpoint of this moment would hold, while the context lasts."""
    kept = [one for one in trainer.checkpoint_callbacks if isinstance(one, ModelCheckpoint)]
    # Lightning lets callbacks change no checkpoint of weights alone.
    if not _swapping(trainer) or (kept and all(one.save_weights_only for one in kept)):
        return nullcontext()
    states: list[dict[str, Any]] = []  # the module's, and what callbacks make of it
    look = LambdaCallback(on_save_checkpoint=lambda trainer, module, saved: states.append(dict(saved["state_dict"])))
    callbacks, trainer.callbacks = trainer.callbacks, [look, *trainer.callbacks, look]
    try:
        checkpoint_of(trainer)
    finally:
        trainer.callbacks = callbacks
    live, saved = states
    swapped = {n: value for n, value in saved.items() if isinstance(value, Tensor) and value is not live.get(n, value)}
    return tensors_in_place(module, swapped)


def _warn_of_modes(callbacks: Sequence[Any], directions: Mapping[str, bool]) -> None:
    """Warns of a callback that takes the worst value of the column that it monitors for the best."""
    for callback in callbacks:
        watching = f"{type(callback).__name__} monitors {callback.monitor!r}"
        better, wanted = ("higher", "max") if directions[callback.monitor] else ("lower", "min")
        if callback.monitor.split("/")[-1].startswith(f"{BALANCED}_"):
            warn(f"{watching}, which is best at {BALANCE}: neither mode finds that; monitor another score")
        elif optional(callback, Monitoring, "mode") not in (None, wanted):
            warn(f"{watching} with mode={callback.mode!r}, but {better} is better: give it mode={wanted!r}")


def keep(folder: str | Path, data: Any, splits: Sequence[Split], pictures: bool = True) -> None:
    """Writes `federation.json` and, of images, `real.png`, with a row of images of each of up to ten clients."""
    versions = {"fedgen": __version__, "python": platform.python_version()}
    content: dict[str, Any] = {"versions": versions | {name: version(name) for name in ("torch", "lightning", "numpy")}}
    if isinstance(data, FederatedDataModule):
        with suppress(ValueError):  # data whose parts cannot be counted train and are scored all the same
            summary = PartitionSummary(data).to_json()
            content |= {name: summary[name] for name in ("classes", "clients")}
    rows = _real_rows(splits[0]) if splits and pictures else {}
    if rows:
        save_png(Path(folder) / REAL, tile(torch.cat(list(rows.values())), REAL_COLUMNS, min_side=SIDE))
    write_json(Path(folder) / KEPT, {**content, "real": list(rows)})


def _real_rows(split: Split) -> dict[str, Tensor]:
    """Images uint8 [REAL_COLUMNS, C, H, W] of some clients, evenly spaced, by name; white where a client has fewer."""
    last, shown = len(split.counts) - 1, min(REAL_ROWS, len(split.counts))
    rows: dict[str, Tensor] = {}
    for place in sorted({round(place * last / max(1, shown - 1)) for place in range(shown)}):
        images, _ = split.of_one(place).first(REAL_COLUMNS)
        if not isinstance(images, Tensor) or images.ndim != 4 or images.shape[1] not in (1, 3):
            return {}
        blank = torch.full((REAL_COLUMNS - len(images), *images.shape[1:]), 255, dtype=torch.uint8)
        rows[split.client_names[place]] = torch.cat([images, blank])
    return rows
