"""The evaluation of a federation whose images the server never sees: the callback."""

from functools import partial
from pathlib import Path

from lightning.pytorch import LightningModule, Trainer

from fedgen.callbacks import FederatedEvaluation
from fedgen.evaluation import Evaluator
from fedgen.flower.client.client_statistics import panels_of
from fedgen.flower.evaluation.answers_per_client import AnswersPerClient
from fedgen.flower.evaluation.noised_answers import NoisedAnswers, refuse_told
from fedgen.flower.evaluation.remote_evaluator import MakeAnswers, RemoteEvaluator
from fedgen.flower.evaluation.summed_answers import SummedAnswers
from fedgen.flower.server.remote_data import RemoteClients
from fedgen.models.optional_hooks import data_module_of


class RemoteEvaluation(FederatedEvaluation):
    """`FederatedEvaluation` where clients keep images: fid, kid and kid-rbf, weighed by examples, no floor."""

    # FID follows from summaries that clients send once, to rounding; of KID each client tells its own score: avg is
    # exact, all avg minus a constant of the federation, which a random sketch estimates, the same at all checkpoints

    def _make_evaluator(self, trainer: Trainer) -> Evaluator:
        data = data_module_of(trainer)
        if not isinstance(data, RemoteClients):
            raise TypeError(f"RemoteEvaluation scores against clients elsewhere, and data is {type(data).__name__}")
        if self.settings["weights"] != "examples":
            raise ValueError("clients elsewhere weigh by examples; leave `weights` of the evaluation out")
        panels_of(self.settings)
        settings = {"device": trainer.strategy.root_device, **self.settings}
        return RemoteEvaluator(data, answers_of(data, self._folder(trainer)), **settings)

    def _remote_tensors(self, trainer: Trainer) -> str:
        return "stay where the clients are: share them"

    def _real_images(self, count: int) -> None:
        """Return no images: they stay with the clients."""

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Logs the promise of statistics with noise, whether or not the round is evaluated."""
        super().on_train_epoch_end(trainer, pl_module)
        data = data_module_of(trainer)
        if isinstance(data, RemoteClients) and (privacy := data.connection.privacy) is not None:
            for logger in trainer.loggers:
                spent = {"statistics_epsilon": privacy.epsilon, "statistics_delta": privacy.delta}
                logger.log_metrics(spent, step=trainer.current_epoch)


def answers_of(data: RemoteClients, folder: Path) -> MakeAnswers:
    """Return how the clients of a run answer an evaluation: by its config with noise, in sums, or one by one."""
    if (privacy := data.connection.privacy) is not None:
        refuse_told(folder)
        return partial(NoisedAnswers, data, privacy, folder)
    return partial(SummedAnswers, data) if data.connection.hidden else partial(AnswersPerClient, data, folder)
