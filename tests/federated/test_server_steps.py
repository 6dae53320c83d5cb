"""What a server trains itself at the ends of rounds, beside what it averages."""

import logging

import lightning as L
import pytest
import torch
from torch import nn

from fedgen.federated import ClientAlgorithm, FedAvgStrategy
from fedgen.seeds import seed_all
from tests.federated.modules import make_data, make_trainer, same, weights


class Served(L.LightningModule):
    """Clients train `a`, the server `b`, which does not travel, by two steps on noise after every round."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.a, self.b = nn.Linear(3, 1), nn.Linear(3, 1)
        self.b.exchanged = False
        self.draws = []

    def training_step(self, batch, batch_idx):
        self.step(self.optimizers()[0], self.a(batch[0]))

    def on_round_end(self, iterations):
        for _ in range(2):
            self.draws.append(torch.randn(4, 3))
            self.step(self.optimizers()[1], self.b(self.draws[-1]))

    def step(self, optimizer, values):
        optimizer.zero_grad()
        self.manual_backward(values.square().mean())
        optimizer.step()

    def configure_optimizers(self):
        return torch.optim.Adam(self.a.parameters(), lr=0.01), torch.optim.Adam(self.b.parameters(), lr=0.01)


def run(rounds, ckpt_path=None, kind=Served, **options):
    torch.manual_seed(0)
    module = kind()
    trainer = make_trainer(FedAvgStrategy(3, seed=5, **options), rounds)
    trainer.fit(module, make_data(), ckpt_path=ckpt_path)
    return module, trainer


@pytest.mark.parametrize("mode", ["reset", "keep", "average"])
def test_the_servers_optimizer_keeps_its_state_over_rounds_as_in_a_plain_loop(mode):
    module, trainer = run(3, optimizer_state=mode)
    torch.manual_seed(0)
    plain = Served()
    optimizer = torch.optim.Adam(plain.b.parameters(), lr=0.01)
    for round in range(3):
        seed_all(5, "server", round)
        for _ in range(2):
            optimizer.zero_grad()
            plain.b(torch.randn(4, 3)).square().mean().backward()
            optimizer.step()
    assert torch.equal(module.b.weight, plain.b.weight)
    assert int(trainer.optimizers[1].state[module.b.weight]["step"]) == 6
    steps = [int(state["step"]) for state in trainer.optimizers[0].state.values()]
    assert steps == ([9, 9] if mode == "average" else [])  # of weights and bias


@pytest.mark.parametrize("mode", ["reset", "keep", "average"])
def test_a_resumed_server_goes_on_to_the_bit(mode, tmp_path):
    whole, _ = run(3, optimizer_state=mode)
    run(2, optimizer_state=mode)[1].save_checkpoint(tmp_path / "part.ckpt")
    resumed, _ = run(3, tmp_path / "part.ckpt", optimizer_state=mode)
    assert same(weights(resumed), weights(whole))


class Shared(Served):
    """Clients train `a`; so does the server, with an Adam of its own."""

    server_optimizers = (1,)

    def on_round_end(self, iterations):
        self.step(self.optimizers()[1], self.a(torch.randn(4, 3)))

    def configure_optimizers(self):
        return tuple(torch.optim.Adam(self.a.parameters(), lr=0.01) for _ in range(2))


@pytest.mark.parametrize("mode", ["reset", "keep", "average"])
def test_a_server_may_train_what_travels_with_an_optimizer_that_the_module_names(mode, tmp_path):
    whole, trainer = run(3, optimizer_state=mode, kind=Shared)
    run(2, optimizer_state=mode, kind=Shared)[1].save_checkpoint(tmp_path / "part.ckpt")
    resumed, again = run(3, tmp_path / "part.ckpt", optimizer_state=mode, kind=Shared)
    for each in (trainer, again):
        assert [int(state["step"]) for state in each.optimizers[1].state.values()] == [3, 3]
    assert same(weights(resumed), weights(whole))


def test_the_servers_draws_depend_on_seed_and_round_alone():
    everybody, few = run(2)[0].draws, run(2, cohort_size=1)[0].draws
    assert all(torch.equal(a, b) for a, b in zip(everybody, few))
    assert not torch.equal(everybody[0], everybody[2])


def test_client_algorithms_do_not_hear_of_the_servers_steps():
    class Counting(ClientAlgorithm):
        count = 0

        def before_step(self, optimizer):
            self.count += 1

    counting = Counting()
    run(2, client_algorithm=counting)
    assert counting.count == 2 * 3 * 3  # rounds, clients, iterations


def test_what_a_client_sends_is_said_once(caplog):
    with caplog.at_level(logging.INFO):
        run(2)
    sent = [record.message for record in caplog.records if record.message.startswith("each client sends")]
    assert sent == ["each client sends 16 B a round and receives 16 B"]  # four numbers of four bytes: `b` stays
