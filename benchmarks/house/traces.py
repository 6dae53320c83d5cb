"""The package's named functions that run on the way of a batch, a round, a training's set-up and a score.

A call is an event "call" of `sys.setprofile` in a file of the package. Comprehensions, lambdas, class bodies and a
generator's resumptions are no calls of their own.
"""

import logging
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from dis import get_instructions
from functools import cache
from inspect import CO_GENERATOR
from io import StringIO
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import lightning as L
import torch
from torch import Tensor

import fedgen
from fedgen.callbacks import FederatedEvaluation
from fedgen.clients import FederatedDataModule
from fedgen.clients.partitions import IID
from fedgen.data import Digits
from fedgen.federated import FedAvgStrategy
from fedgen.models import WGANGP
from fedgen.models.networks import SmallCritic, SmallGenerator
from fedgen.scores import FrechetReference

ROOT = Path(fedgen.__file__).parent
ROUNDS, STEPS, CLIENTS = 3, 3, 2  # the last round is counted


@dataclass(frozen=True)
class Call:
    """One call of a named function.

    Args:
        code: of the function.
        depth: the package's frames from it outwards, itself included.
    """

    code: CodeType
    depth: int


class Trace:
    """The calls in order, and the places in them of marks such as "step"."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.marks: list[tuple[str, int, int]] = []  # name, number of calls before it, the package's frames around it

    @contextmanager
    def running(self) -> Iterator[None]:
        """Note the calls of what runs within."""
        sys.setprofile(self._note)
        try:
            yield
        finally:
            sys.setprofile(None)

    def mark(self, name: str) -> None:
        """Note that an event happens here."""
        self.marks.append((name, len(self.calls), _depth(sys._getframe(1))))

    def between(self, first: tuple[str, int], last: tuple[str, int]) -> "Stretch":
        """The calls between two marks, each by its name and its number among marks of this name."""
        places = [[place for named, place, _ in self.marks if named == name][number] for name, number in (first, last)]
        return Stretch(self.calls[places[0] : places[1]])

    def _note(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and _is_named(frame):
            self.calls.append(Call(frame.f_code, _depth(frame)))


@dataclass(frozen=True)
class Stretch:
    """Consecutive calls of a trace."""

    calls: list[Call]

    @property
    def files(self) -> list[str]:
        """The files that they pass, relative to the package."""
        return sorted({str(Path(call.code.co_filename).relative_to(ROOT)) for call in self.calls})

    @property
    def depth(self) -> int:
        """The most frames of the package at once."""
        return max((call.depth for call in self.calls), default=0)

    @property
    def functions(self) -> dict[str, Counter[str]]:
        """The calls of each function, by file."""
        found: dict[str, Counter[str]] = {}
        for call in self.calls:
            file = str(Path(call.code.co_filename).relative_to(ROOT))
            found.setdefault(file, Counter())[call.code.co_qualname] += 1
        return dict(sorted(found.items()))


def _is_named(frame: FrameType) -> bool:
    code = frame.f_code
    if not code.co_filename.startswith(f"{ROOT}/") or code.co_name.startswith("<"):
        return False
    return not code.co_flags & CO_GENERATOR or frame.f_lasti <= _start(code)


@cache
def _start(code: CodeType) -> int:
    """The place of a generator's first instruction after its making: beyond it, a call is a resumption."""
    return next(one.offset for one in get_instructions(code) if one.opname == "RESUME")


def _depth(frame: FrameType | None) -> int:
    found = 0
    while frame is not None:
        code = frame.f_code
        found += code.co_filename.startswith(f"{ROOT}/") and not code.co_name.startswith("<")
        frame = frame.f_back
    return found


def _marked(kind: type[L.LightningModule], trace: Trace) -> type[L.LightningModule]:
    """A class of modules that mark their steps and rounds."""

    class Marked(kind):  # type: ignore[misc, valid-type]
        def training_step(self, *arguments: Any) -> Any:
            trace.mark("step")
            found = super().training_step(*arguments)
            trace.mark("after step")
            return found

        def on_train_epoch_start(self) -> None:
            trace.mark("round")

        def on_train_epoch_end(self) -> None:
            trace.mark("end of round")

    return Marked


class Linear(L.LightningModule):
    """One layer, one optimizer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(64, 10)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        images, labels = batch
        return torch.nn.functional.cross_entropy(self.layer(images.flatten(1)), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


def trace_fit(
    make: Callable[[Trace], L.LightningModule], callbacks: Sequence[L.Callback] = (), **options: Any
) -> Trace:
    """The trace of three rounds of two clients' three steps each.

    Args:
        make: gives the module, which marks in the trace that it is given.
        callbacks: of the Trainer.
        options: of the strategy.
    """
    trace = Trace()
    warnings.simplefilter("ignore")
    for name in ("lightning", "lightning.pytorch"):
        logging.getLogger(name).setLevel(logging.ERROR)
    quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing"), False)
    with tempfile.TemporaryDirectory() as folder:
        strategy = FedAvgStrategy(communication_interval=STEPS, **options)
        trainer = L.Trainer(
            accelerator="cpu",
            devices=1,
            max_epochs=ROUNDS,
            strategy=strategy,
            default_root_dir=folder,
            callbacks=list(callbacks),
            **quiet,
        )
        module, data = make(trace), FederatedDataModule(Digits(), IID(CLIENTS), batch_size=16)
        with redirect_stdout(StringIO()), trace.running():
            trace.mark("fit")
            trainer.fit(module, data)
    return trace


def trace_linear() -> Trace:
    """The trace of a linear model."""
    return trace_fit(lambda trace: _marked(Linear, trace)())


def trace_gan() -> Trace:
    """The trace of the quickstart's WGAN-GP."""
    options = {"n_critic": 2, "lr": 1e-3, "betas": (0.0, 0.99), "ema_decay": 0.995}
    return trace_fit(
        lambda trace: _marked(WGANGP, trace)(SmallGenerator(), SmallCritic(), **options), optimizer_state="average"
    )


def trace_evaluation() -> tuple[Stretch, int, int]:
    """The calls from a generator's images to `fid_all` in scores.jsonl, of the last of three evaluations by the
    callback; and the package's frames around `model.sample`, and their files.
    """
    frames: list[list[str]] = []

    class Sampling(Linear):
        def __init__(self, trace: Trace) -> None:
            super().__init__()
            self._trace = trace

        def sample(self, num_images: int, generator: torch.Generator | None = None) -> Tensor:
            frames.append(_files_around(sys._getframe(1)))
            images = torch.rand(num_images, 1, 8, 8, generator=generator) * 2 - 1
            self._trace.mark("sampled")
            return images

    scored = FederatedEvaluation(
        every_n_rounds=1, embeddings=["pixels"], scores=["fid"], num_images=40, grid=0, report=False, page=False
    )
    trace = trace_fit(Sampling, [scored])
    start = [place for name, place, _ in trace.marks if name == "sampled"][-1]
    written = [place for place, call in enumerate(trace.calls) if call.code.co_qualname == "append_records"][-1]
    return Stretch(trace.calls[start : written + 1]), len(frames[-1]), len(set(frames[-1]))


def _files_around(frame: FrameType | None) -> list[str]:
    """The file of each of the package's named functions around a frame."""
    found = []
    while frame is not None:
        code, frame = frame.f_code, frame.f_back
        if code.co_filename.startswith(f"{ROOT}/evaluation") and not code.co_name.startswith("<"):
            found.append(code.co_filename)
    return found


def trace_score() -> Stretch:
    """The calls of one FID with errors, of a generated set to four clients and their pool, D = 16."""
    draws = torch.Generator().manual_seed(0)
    clients = [torch.randn(50, 16, generator=draws) for _ in range(4)]
    reference, generated, trace = FrechetReference.from_features(clients), torch.randn(80, 16, generator=draws), Trace()
    with trace.running():
        reference.score(generated)
    return Stretch(trace.calls)
