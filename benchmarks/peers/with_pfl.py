"""pfl-research: `FederatedAveraging` on a `SimulatedBackend`."""

from typing import Any

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.internal.ops.pytorch_ops import distributed
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor

from benchmarks.peers.clock import Clock
from benchmarks.peers.workload import (
    BATCH,
    CLIENTS,
    CNN,
    RATE,
    chosen_workload,
    make_model,
    place,
    positions,
    tell,
    to_batch,
)


class Net(CNN):
    """The CNN on positions, as pfl cuts a client's data itself, into slices."""

    def loss(self, chosen: Tensor) -> Tensor:
        return super().loss(*to_batch(chosen))

    def metrics(self, chosen: Tensor) -> dict[str, Any]:
        with torch.no_grad():
            return {"loss": Weighted(self.loss(chosen).item() * len(chosen), len(chosen))}


class Rounds(TrainingProcessCallback):
    """Tells a clock of the rounds' ends; knows the present round."""

    def __init__(self) -> None:
        self.clock, self.present = Clock(), 0

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        self.present = central_iteration + 1
        self.clock.tick()
        return False, Metrics()


def main() -> None:
    workload, _ = chosen_workload()
    net, rounds = Net(workload.extra, workload.trained), Rounds()
    net.load_state_dict(make_model(workload).state_dict())
    net.to(place())
    model = PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0))

    def make_dataset(client: int) -> Dataset:
        return Dataset([positions(rounds.present, client)], user_id=str(client))

    data = FederatedDataset(make_dataset, get_user_sampler("minimize_reuse", list(range(CLIENTS))))
    counts = {"central_num_iterations": workload.rounds, "evaluation_frequency": workload.rounds + 1}
    local = {"local_num_epochs": None, "local_num_steps": workload.interval, "local_batch_size": BATCH}
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(**counts, train_cohort_size=CLIENTS, val_cohort_size=None),
        backend=SimulatedBackend(data, data, postprocessors=[WeightByDatapoints()]),
        model=model,
        model_train_params=NNTrainHyperParams(**local, local_learning_rate=RATE),
        model_eval_params=NNEvalHyperParams(local_batch_size=BATCH),
        callbacks=[rounds],
        send_metrics_to_platform=False,
    )
    if distributed.global_rank == 0:
        tell(rounds.clock.seconds, net.parameters())


if __name__ == "__main__":
    main()
