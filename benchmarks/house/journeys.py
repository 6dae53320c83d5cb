"""Three journeys through the package, traced in one round of one client: what somebody reads who follows them."""

import sys
import tempfile
import threading
from collections import Counter
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import lightning as L

import fedgen
from fedgen.callbacks import FederatedEvaluation
from fedgen.clients import FederatedDataModule
from fedgen.clients.partitions import ByClass
from fedgen.data import Digits
from fedgen.federated import FedAvgStrategy
from fedgen.models import WGANGP
from fedgen.models.networks import SmallCritic, SmallGenerator

ROOT = Path(fedgen.__file__).parent
JOURNEYS = {
    "step": "from a client's batch to the module's training_step",
    "score": "from generated features to fid_all in scores.jsonl",
    "update": "from a client's last step to the server's weights",
}


class Journey:
    """The package's functions that run between `begin` and `end`."""

    def __init__(self) -> None:
        self._codes: set[CodeType] = set()
        self.is_over = False

    def begin(self) -> None:
        if not self.is_over:
            threading.setprofile(self._note)
            sys.setprofile(self._note)

    def end(self) -> None:
        threading.setprofile(None)
        sys.setprofile(None)
        self.is_over = bool(self._codes)

    def _note(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(str(ROOT)):
            self._codes.add(frame.f_code)

    @property
    def lines_by_file(self) -> dict[str, int]:
        """The lines of its functions, by their files within the package."""
        places = {(code.co_filename, line) for code in self._codes for _, _, line in code.co_lines() if line}
        return dict(sorted(Counter(str(Path(file).relative_to(ROOT)) for file, _ in places).items()))

    @property
    def files(self) -> int:
        return len(self.lines_by_file)

    @property
    def lines(self) -> int:
        return sum(self.lines_by_file.values())

    @property
    def functions(self) -> dict[str, list[str]]:
        """The names of its functions, by file."""
        found: dict[str, list[str]] = {}
        for code in sorted(self._codes, key=lambda code: code.co_firstlineno):
            found.setdefault(str(Path(code.co_filename).relative_to(ROOT)), []).append(code.co_qualname)
        return found


class Traced(WGANGP):
    """A model that ends the first journey at its first step, and begins the last after its last one."""

    own_turn_state = ("_journeys", "_done")  # federated averaging would reset what a turn notes down

    def __init__(self, journeys: dict[str, Journey], steps: int) -> None:
        super().__init__(SmallGenerator(latent_dim=8), SmallCritic())
        self._journeys, self._steps, self._done = journeys, steps, 0

    def training_step(self, batch: Any, batch_idx: int) -> None:
        self._journeys["step"].end()
        super().training_step(batch, batch_idx)
        self._done += 1
        if self._done == self._steps:
            self._journeys["update"].begin()


class Ends(L.Callback):
    """The events of a round that are no step."""

    def __init__(self, journeys: dict[str, Journey]) -> None:
        self._journeys = journeys

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self._journeys["step"].begin()

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._journeys["update"].end()


def trace() -> dict[str, Journey]:
    """The three journeys of one round of one client, scored at its end."""
    from fedgen.callbacks import federated_evaluation
    from fedgen.evaluation.real.reference import Reference

    journeys = {name: Journey() for name in JOURNEYS}
    score, append = Reference.score, federated_evaluation.append_records

    def scored(*arguments: Any, **options: Any) -> Any:
        journeys["score"].begin()
        return score(*arguments, **options)

    def appended(*arguments: Any, **options: Any) -> Any:
        found = append(*arguments, **options)
        journeys["score"].end()
        return found

    with tempfile.TemporaryDirectory() as folder:
        Reference.score, federated_evaluation.append_records = scored, appended
        try:
            evaluation = FederatedEvaluation(
                every_n_rounds=1, embeddings=["pixels"], num_images=80, scores=["fid"], grid=0
            )
            quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary"), False)
            trainer = L.Trainer(
                accelerator="cpu",
                max_epochs=1,
                callbacks=[Ends(journeys), evaluation],
                strategy=FedAvgStrategy(communication_interval=3, cohort_size=1),
                default_root_dir=folder,
                **quiet,
            )
            with redirect_stdout(StringIO()):  # the tables at a run's end
                trainer.fit(Traced(journeys, 3), FederatedDataModule(Digits(), ByClass(), batch_size=16))
        finally:
            Reference.score, federated_evaluation.append_records = score, append
    return journeys
