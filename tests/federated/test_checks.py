"""Trainer settings that would look into a round are refused."""

from datetime import timedelta

import pytest
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from fedgen.federated import FedAvgStrategy
from tests.federated.modules import Automatic, make_data, make_trainer


@pytest.mark.parametrize("interval", [1, 2, 0.5, "00:00:00:10", timedelta(minutes=1)])
def test_validation_after_turns_or_seconds_is_refused(interval):
    """The integer 1 means after every turn; only the float 1.0 means once a round."""
    trainer = make_trainer(FedAvgStrategy(2), 1, val_check_interval=interval)
    with pytest.raises(MisconfigurationException, match="check_val_every_n_epoch"):
        trainer.fit(Automatic(), make_data())


@pytest.mark.parametrize("interval", [None, 1.0])
def test_validation_once_a_round_is_allowed(interval):
    make_trainer(FedAvgStrategy(1, seed=0), 1, val_check_interval=interval).fit(Automatic(), make_data())
