"""What clients keep between rounds."""

import lightning as L
import torch

from fedgen.federated import FedAvgStrategy
from tests.federated.modules import TwoOptimizers, make_data, make_trainer


class Thaws(L.Callback):
    """The second layer learns from the second round on."""

    def on_train_epoch_start(self, trainer, module):
        if trainer.current_epoch == 1:
            module.b.requires_grad_(True)
            trainer.optimizers[0].add_param_group({"params": module.b.parameters(), "lr": 0.1})


class FirstLayer(TwoOptimizers):
    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers()
        loss = self.losses(batch)
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()

    def configure_optimizers(self):
        self.b.requires_grad_(False)
        return torch.optim.SGD(self.a.parameters(), lr=0.1)


def test_personal_tensors_that_thaw_join_those_that_clients_have():
    """A client that does not train at once has them as the server has."""
    module, strategy = FirstLayer(), FedAvgStrategy(2, cohort_size=2, personal=["a.bias", "b.*"], seed=1)
    before = module.b.weight.detach().clone()
    trainer = make_trainer(strategy, 2, callbacks=[Thaws()])
    trainer.fit(module, make_data())
    kept = strategy.personal_tensors
    first, second = (set(strategy.sample_cohort(3, round)) for round in (0, 1))
    assert not strategy.left_out
    assert set(kept) == first | second
    assert {tuple(own) for own in kept.values()} == {("a.bias", "b.weight", "b.bias")}
    for client, own in kept.items():
        assert torch.equal(own["b.weight"], before) == (client not in second)
    assert first - second
