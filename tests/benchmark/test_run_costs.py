"""The costs of a run, as its callback counts them and the last checkpoint keeps them."""

import resource

import torch

from fedgen.benchmark.run_costs import UNIT, RunCosts
from fedgen.federated import FedAvgStrategy
from tests.federated.modules import Automatic, make_data, make_trainer


def test_turns_and_seconds_are_of_whole_rounds_and_a_checkpoint_has_them(tmp_path):
    costs = RunCosts()
    trainer = make_trainer(FedAvgStrategy(2, seed=0), 3, callbacks=[costs])
    trainer.fit(Automatic(), make_data())
    assert costs.turns == 9  # three clients, three rounds
    assert costs.seconds > 0
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    state = torch.load(tmp_path / "last.ckpt", weights_only=True)["callbacks"]["RunCosts"]
    assert (state["turns"], state["seconds"]) == (9, costs.seconds)
    again = RunCosts()
    again.load_state_dict(state)
    assert (again.turns, again.seconds) == (9, costs.seconds)
    assert again.state_dict()["peak_memory"] >= state["peak_memory"]


def test_memory_is_read_when_a_checkpoint_is_written_after_the_scores_of_its_round(monkeypatch):
    costs, usage = RunCosts(), resource.getrusage(resource.RUSAGE_SELF)
    before = costs.state_dict()["peak_memory"]
    assert before >= usage.ru_maxrss * UNIT

    class Larger:
        ru_maxrss = 2 * usage.ru_maxrss  # as scoring left it

    monkeypatch.setattr(resource, "getrusage", lambda who: Larger)
    assert costs.state_dict()["peak_memory"] == 2 * usage.ru_maxrss * UNIT
