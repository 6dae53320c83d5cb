"""The report at the end of a run whose server trains alone: which clients did not answer when."""

from lightning.pytorch import Callback, LightningModule, Trainer

from fedgen.federated.left_out import report_of, tell


class EndReport(Callback):
    """Says at the end who was left out, as `FedAvgStrategy` does by itself."""

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        tell(report_of(trainer))

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        tell(report_of(trainer))
