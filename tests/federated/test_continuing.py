"""Schedules and quasi-random generators that a module keeps go on as in one client's fit, wherever it trains."""

import numpy as np
import pytest
import torch
from scipy.stats import qmc
from torch.quasirandom import SobolEngine

from fedgen.federated import FedAvgStrategy
from fedgen.federated.client_state.local_state import LocalState
from fedgen.flower.client.turn_strategy import Recorder
from fedgen.flower.server.flower_strategy import Replies
from tests.federated.modules import Automatic, make_data, make_trainer


class Sequenced(Automatic):
    """Draws from quasi-random sequences, and moves a schedule that it keeps, at each of its steps."""

    def __init__(self):
        super().__init__("SGD")
        self.sobol, self.halton = SobolEngine(1), qmc.Halton(1, scramble=False)
        self.seen = [].append

    def training_step(self, batch, batch_idx):
        self.seen((float(self.sobol.draw(1)), self.halton.random(1).item(), self.schedule.get_last_lr()[0]))
        self.schedule.step()
        return super().training_step(batch, batch_idx)

    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        self.schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.2, total_iters=8)
        return optimizer


def test_each_turn_of_a_round_begins_where_the_round_did_and_the_next_round_goes_on():
    """Two clients of three steps each, two rounds: both see the first three points, then the next three."""
    module, seen = Sequenced(), []
    module.seen = seen.append
    make_trainer(FedAvgStrategy(3, seed=0), 2).fit(module, make_data((8, 8)))
    sobol, halton = SobolEngine(1).draw(6).flatten().tolist(), qmc.Halton(1, scramble=False).random(6).ravel()
    rates = [0.05 * (1 - 0.1 * step) for step in range(6)]
    expected = np.array([sobol, halton, rates]).T
    assert np.array(seen) == pytest.approx(np.concatenate([expected[:3], expected[:3], expected[3:], expected[3:]]))


def test_a_resumed_run_goes_on_with_them(tmp_path):
    def fit(rounds, path=None):
        module, seen = Sequenced(), []
        module.seen = seen.append
        trainer = make_trainer(FedAvgStrategy(3, seed=0), rounds)
        trainer.fit(module, make_data((8, 8)), ckpt_path=path)
        trainer.save_checkpoint(tmp_path / f"{rounds}.ckpt")
        return seen

    fit(1)
    assert fit(2, tmp_path / "1.ckpt") == fit(2)[6:]


def made():
    """A client's or a server's optimizer, and a module's sequence."""
    optimizer, engine = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1), SobolEngine(2)
    return LocalState([optimizer], [], None, "reset"), engine


def answered(client, task, points):
    """What a client sends of a turn in which it draws some points, and the points."""
    local, engine = made()
    local.load_server_state(task)
    local.start_round([engine])
    local.start_turn(client)
    drawn = engine.draw(points)
    local.end_turn(client, 1.0)
    recorder = Recorder()
    local.merge_continuing(recorder)
    return recorder.told, drawn


def test_a_server_takes_the_last_clients_values_and_sends_them_with_the_next_task():
    server, engine = made()
    server.start_round([engine])
    task = server.server_state()
    told = [answered(client, task, points)[0] for client, points in ((4, 2), (7, 3), (5, 6))]
    server.merge_continuing(Replies(told))
    server.end_round()
    assert engine.num_generated == 3
    server.start_round([engine])
    _, drawn = answered(4, server.server_state(), 2)
    assert torch.equal(drawn, SobolEngine(2).draw(5)[3:])


@pytest.mark.parametrize(
    "values",
    [
        {"0.num_generated": float("nan")},
        {"0.num_generated": "9"},
        {"0.quasi": torch.zeros(3, dtype=torch.long)},
        {"0.draw": 1},
        {"1.num_generated": 1},
    ],
)
def test_a_server_refuses_values_that_no_turn_can_have_made(values):
    server, engine = made()
    server.start_round([engine])
    with pytest.raises(ValueError, match="like"):
        server.merge_continuing(Replies([[(4, values)]]))
