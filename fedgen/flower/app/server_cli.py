"""The recipe of a deployment as its server runs it."""

from collections.abc import Callable, Mapping
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from fedgen.callbacks import RoundCheckpoint
from fedgen.federated.left_out import report_of, tell
from fedgen.flower.app.run_config import CHECKPOINT
from fedgen.flower.server.connection import Connection
from fedgen.flower.server.flower_strategy import FlowerStrategy
from fedgen.flower.server.remote_data import RemoteClients
from fedgen.training.fit import FedgenCLI


class EndReport(Callback):
    """Says at the end who was left out, as `FedAvgStrategy` does by itself."""

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        tell(report_of(trainer))

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        tell(report_of(trainer))


class ServerCLI(FedgenCLI):
    """`FedgenCLI` whose data and strategy are connected to clients.

    Args:
        settings: of `for_server`.
        connection: to the clients.
        ckpt_path: checkpoint to go on from, as for `fedgen fit`; None for the run's last.
    """

    previous = f"--run-config '{CHECKPOINT}=\"previous\"'"

    def __init__(self, settings: Mapping[str, Any], connection: Connection, ckpt_path: str | None) -> None:
        self._connection = connection
        super().__init__(args={**settings, "ckpt_path": ckpt_path})

    def instantiate_classes(self) -> None:
        """Make what LightningCLI makes; data and strategy with the connection."""
        connected = [(self._connected, kind, True) for kind in (RemoteClients, FlowerStrategy)]
        self.config_init = self.parser.instantiate(self.config, instantiators=connected)
        self.datamodule, self.model = self.config_init.data, self.config_init.model
        self._add_configure_optimizers_method_to_model(self.subcommand)
        self.trainer = self.instantiate_trainer()

    def _connected(self, kind: Callable[..., Any], **settings: Any) -> Any:
        """Make one of these classes of a recipe's settings and the connection, which is none of them."""
        return kind(_connection=self._connection, **settings)

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        trainer = super().instantiate_trainer(**kwargs)
        for callback in trainer.callbacks:
            if isinstance(callback, RoundCheckpoint):
                callback.saving_share = 1.0  # clients go back with the server by one turn alone
        if not isinstance(trainer.strategy, FlowerStrategy):  # which reports by itself
            trainer.callbacks.append(EndReport())
        return trainer
