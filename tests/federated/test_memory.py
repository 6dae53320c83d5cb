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


class Averages(FirstLayer):
    """A frozen copy of each client's first layer follows it, as averages of weights do."""

    def __init__(self):
        super().__init__()
        self.copy = torch.nn.Parameter(torch.zeros(4, 3), requires_grad=False)

    def training_step(self, batch, batch_idx):
        super().training_step(batch, batch_idx)
        self.copy.data.lerp_(self.a.weight.detach(), 0.5)


def averaging(rounds, start=None):
    torch.manual_seed(0)
    strategy = FedAvgStrategy(2, cohort_size=2, personal=["copy", "b.*"], seed=1)
    trainer = make_trainer(strategy, rounds, callbacks=[Thaws()])
    trainer.fit(Averages(), make_data(), ckpt_path=start)
    return trainer, {client: dict(kept) for client, kept in strategy.personal_tensors.items()}


def test_frozen_copies_that_clients_keep_last_where_layers_thaw_and_in_a_run_that_goes_on(tmp_path):
    first, _ = averaging(1)
    first.save_checkpoint(tmp_path / "a.ckpt")
    straight, resumed = averaging(3)[1], averaging(3, tmp_path / "a.ckpt")[1]
    assert straight.keys() == resumed.keys()
    assert all(same(straight[client], resumed[client]) for client in straight)
    alone = set(first.strategy.sample_cohort(3, 0)) - set(first.strategy.sample_cohort(3, 1))
    before, after = averaging(1)[1], averaging(2)[1]
    for client in alone:
        assert torch.equal(before[client]["copy"], after[client]["copy"])
        assert before[client]["copy"].norm() > 0
    assert alone


def test_frozen_copies_that_clients_keep_last_in_a_second_fit():
    trainer, before = averaging(1)
    trainer.fit_loop.max_epochs = 1
    trainer.fit(trainer.model, make_data())
    now = trainer.strategy.personal_tensors
    assert all(torch.equal(before[client]["copy"], now[client]["copy"]) for client in before)


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
