"""No setting of a Trainer cuts every round in silence, and fast_dev_run is whole rounds."""

import copy

import pytest
import torch
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from fedgen.federated import FedAvgStrategy
from tests.federated.modules import Automatic, Manual, make_data, make_trainer, same, weights


def fit(module, rounds, data=None, **options):
    trainer = make_trainer(FedAvgStrategy(4, seed=0), rounds, **options)
    trainer.fit(module, data or make_data())
    return trainer


@pytest.mark.parametrize(("given", "rounds"), [(True, 1), (1, 1), (2, 2)])
@pytest.mark.parametrize("kind", [Automatic, Manual])
def test_a_fast_dev_run_is_so_many_whole_rounds(kind, given, rounds):
    torch.manual_seed(3)
    module = kind()
    reference = copy.deepcopy(module)
    trainer = fit(module, 9, fast_dev_run=given)
    fit(reference, rounds)
    assert same(weights(module), weights(reference))
    assert trainer.current_epoch == rounds


def test_a_fast_dev_run_is_whole_where_a_setup_hook_has_asked_for_the_batches():
    class Asks(Automatic):
        def setup(self, stage):
            self.steps = self.trainer.estimated_stepping_batches

    trainer = fit(Asks(), 1, fast_dev_run=True)
    assert trainer.num_training_batches == 3


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"limit_train_batches": 1}, r"limit_train_batches=1: .* a round has 3 .* after 1 .*cohort_size=1"),
        ({"limit_train_batches": 2}, r"limit_train_batches=2: .*cohort_size=2.*fast_dev_run=True"),
        ({"limit_train_batches": 0.7}, r"limit_train_batches=0.7: .* after 2"),
        ({"overfit_batches": 2}, r"overfit_batches=2: "),
        ({"overfit_batches": 0.5}, r"overfit_batches=0.5: "),
    ],
)
def test_a_setting_that_would_cut_every_round_is_refused_before_training(options, found):
    class Untouched(Automatic):
        def training_step(self, batch, batch_idx):
            raise AssertionError("a step was taken")

    with pytest.raises(MisconfigurationException, match=found):
        fit(Untouched(), 2, **options)


@pytest.mark.parametrize("limit", [3, 7, 1.0])
def test_a_limit_that_cuts_nothing_is_taken(limit):
    module = Automatic()
    before = weights(module)
    fit(module, 1, limit_train_batches=limit)
    assert not same(weights(module), before)


def test_a_round_of_one_client_may_be_limited_to_one_turn():
    fit(Automatic(), 1, make_data((12,)), limit_train_batches=1)
