"""What clients keep between rounds."""

import lightning as L
import pytest
import torch

from fedgen.federated import FedAvgStrategy, left_out
from fedgen.federated.client_state.memory import ClientMemory
from fedgen.federated.federation_state import check_packed
from tests.federated.modules import TwoOptimizers, make_data, make_trainer, same, weights


class Thaws(L.Callback):
    """The second layer learns from the second round on, also in a run that goes on after it."""

    def __init__(self):
        self.has_thawed = False

    def state_dict(self):
        return {"has_thawed": self.has_thawed}

    def load_state_dict(self, state_dict):
        self.has_thawed = state_dict["has_thawed"]

    def on_fit_start(self, trainer, module):
        if self.has_thawed:
            self.thaw(trainer, module)

    def on_train_epoch_start(self, trainer, module):
        if trainer.current_epoch == 1 and not self.has_thawed:
            self.thaw(trainer, module)

    def thaw(self, trainer, module):
        module.b.requires_grad_(True)
        trainer.optimizers[0].add_param_group({"params": module.b.parameters(), "lr": 0.1})
        self.has_thawed = True


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


def test_a_run_goes_on_where_personal_tensors_had_thawed(tmp_path):
    def trained(rounds, start=None):
        torch.manual_seed(0)
        module, strategy = FirstLayer(), FedAvgStrategy(2, cohort_size=2, personal=["a.bias", "b.*"], seed=1)
        trainer = make_trainer(strategy, rounds, callbacks=[Thaws()])
        trainer.fit(module, make_data(), ckpt_path=start)
        return trainer

    trained(3).save_checkpoint(tmp_path / "a.ckpt")
    straight, resumed = trained(4), trained(4, tmp_path / "a.ckpt")
    assert same(weights(straight.model), weights(resumed.model))
    kept, again = straight.strategy.personal_tensors, resumed.strategy.personal_tensors
    assert kept.keys() == again.keys()
    assert all(same(kept[client], again[client]) for client in kept)


@pytest.mark.slow
def test_a_long_run_with_clients_that_always_fail_keeps_a_bounded_list():
    memory = ClientMemory()
    for round in range(3 * left_out.KEPT_TURNS // 500):
        memory.start_round()
        memory.left_out += left_out.make_entries(round, dict.fromkeys(range(500), "RuntimeError: no"), None)
        told = memory.local_summary()
        memory.merge_summaries([told])
        assert told[1] == memory.left_out[-500:]
    assert len(memory.left_out) <= left_out.KEPT_TURNS + 2 * 500
    assert sum(entry.get("turns", 1) for entry in memory.left_out) == 3 * left_out.KEPT_TURNS
    parts = {"local": {"clients": {}}, "server_optimizer": None, "algorithm": {}}
    check_packed({"version": 1, **memory.state_dict(), **parts}, {})
