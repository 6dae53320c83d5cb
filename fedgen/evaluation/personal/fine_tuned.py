"""Models that their clients fine-tune first: what a client gains that trains the server's model before it is used.

Personalisation as FedAvg users know it: each scored client, whether it took part in the training or not, trains the
server's model on its own training images for a stated number of iterations, and what its own model then makes is scored
against its own images. Clients who never took part have no personal tensors and start from the server's, and so do the
others here: the two are compared after the same fine-tuning.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning as L
import torch

from fedgen.clients import FederatedDataModule
from fedgen.clients.client import Roles
from fedgen.evaluation.evaluate import Evaluator
from fedgen.evaluation.personal.single_clients import SingleClients
from fedgen.evaluation.records import FINE_TUNED, ScoreRecord
from fedgen.evaluation.runs.checkpoints import load_weights, local_models
from fedgen.federated import FedAvgStrategy
from fedgen.models.ema import averages_of
from fedgen.progress import track
from fedgen.seeds import derive, isolated


@dataclass(frozen=True, eq=False)
class LocalFineTuning:
    """A stated local fine-tuning, as a client's turn in a training that begins with the scored model.

    The optimizers start anew, and so does a warm-up of the model's own. Where images are drawn with a moving average of
    the weights, the average is what fine-tuning starts from, and its result is used as it is: over so few iterations an
    average would hardly move.

    Args:
        data: the clients; with a `split` also those that never train.
        iterations: of each client, in batches of the data module's size.
        accelerator: to train on, as Lightning names them.

    Raises:
        ValueError: for no iterations.
    """

    data: FederatedDataModule
    iterations: int
    accelerator: str = "cpu"

    def __post_init__(self) -> None:
        if self.iterations < 1:
            raise ValueError(f"fine_tune={self.iterations}: a client trains for at least one iteration")

    @property
    def generator(self) -> str:
        """The generator's name in records, in the model's place: "fine-tuned 20"."""
        return f"{FINE_TUNED} {self.iterations}"

    def records(
        self,
        module: L.LightningModule,
        evaluator: Evaluator,
        path: Path,
        round: int,
        optimised_on: Sequence[str] = (),
    ) -> list[ScoreRecord]:
        """The scores of a checkpoint's model after each scored client has fine-tuned it.

        There is no aggregate all: there is no one model whose images could be held against the pool.

        Args:
            module: of the run's kind; it is left fine-tuned.
            evaluator: of these data.
            path: of the checkpoint.
            round: after which it was written.
            optimised_on: scores or embeddings that a training loss used.

        Raises:
            ValueError: for a checkpoint of training without exchange, which has no server's model.
        """
        if local_models(module, load_weights(module, path)):
            raise ValueError(
                f"fine_tune starts from the server's model, and {path} has none: it trained without exchange"
            )
        for network, average in averages_of(module):
            network.load_state_dict(average.network.state_dict())
        singles, everyone = SingleClients(evaluator), self.data.everyone
        scored = [number for number, client in enumerate(everyone) if client.name in singles.places]

        def score(turn: int) -> None:
            """Score the client whose model is in place."""
            singles.score(everyone[scored[turn]].name, module, round)

        self._train(module, scored, score, derive(self.data.seed, "fine-tuning", round))
        details = {"round": round, "checkpoint": path.name, "optimised_on": list(optimised_on)}
        note = f"each client's own model, {self.iterations} iterations from the server's"
        number = evaluator.num_images if evaluator.needs_images else 0
        return evaluator.records(singles.take(), self.generator, number, note=note, **details)

    def _train(self, module: L.LightningModule, scored: Sequence[int], score: Callable[[int], None], seed: int) -> None:
        """One round without exchange, in which each of the clients takes its turn; then `score` of each turn."""
        strategy = FedAvgStrategy(communication_interval=self.iterations, personal=["*"], seed=seed)
        quiet: dict[str, Any] = dict.fromkeys(
            ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
        )
        trainer = L.Trainer(
            strategy=strategy,
            callbacks=[_Each(len(scored), score)],
            accelerator=self.accelerator,
            devices=1,
            max_epochs=1,
            num_sanity_val_steps=0,
            limit_val_batches=0,
            **quiet,
        )
        others = sorted(set(range(len(self.data.everyone))) - set(scored))
        with isolated():
            trainer.fit(module, self.data.with_roles(Roles(tuple(scored), (), tuple(others))))


class _Each(L.Callback):
    """Asks for every client's model at the end of the one round.

    Args:
        count: of clients.
        score: called with a client's number while its model is in place.
    """

    def __init__(self, count: int, score: Callable[[int], None]) -> None:
        self.count, self.score = count, score

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        strategy: Any = trainer.strategy
        for turn in track(range(self.count), "scoring fine-tuned models", total=self.count, unit="clients"):
            with strategy.client_model(turn), torch.no_grad():
                for network, average in averages_of(pl_module):
                    average.network.load_state_dict(network.state_dict())
                self.score(turn)
