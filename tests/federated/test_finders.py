"""What looks for a learning rate or a batch size is refused with a remedy, and the remedy works."""

import pytest
from lightning.pytorch.callbacks import BatchSizeFinder, LearningRateFinder
from lightning.pytorch.tuner import Tuner
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from fedgen.federated import FedAvgStrategy
from tests.federated.modules import Automatic, make_data, make_trainer


class Rated(Automatic):
    def __init__(self):
        super().__init__()
        self.lr = 0.01


def test_a_tuner_under_the_strategy_is_refused_with_the_remedy(tmp_path):
    trainer = make_trainer(FedAvgStrategy(2, seed=0), 3, default_root_dir=tmp_path)
    with pytest.raises(MisconfigurationException, match="lr_find"):
        Tuner(trainer).lr_find(Rated(), datamodule=make_data())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("finder", [LearningRateFinder, BatchSizeFinder])
def test_finders_among_the_callbacks_are_refused_by_name(tmp_path, finder):
    trainer = make_trainer(FedAvgStrategy(2, seed=0), 3, default_root_dir=tmp_path, callbacks=[finder()])
    with pytest.raises(MisconfigurationException, match=f"{finder.__name__} .*a client's whole turn"):
        trainer.fit(Rated(), make_data())


@pytest.mark.slow
def test_the_remedy_finds_a_rate_and_a_batch_size_on_the_pooled_clients(tmp_path):
    module, data = Rated(), make_data(batch_size=2)
    tuner = Tuner(make_trainer("auto", 50, default_root_dir=tmp_path))
    found = tuner.lr_find(module, datamodule=data, num_training=40)
    assert len(found.results["lr"]) == 40
    assert found.suggestion() is not None
    assert tuner.scale_batch_size(module, datamodule=data, max_trials=2) == data.batch_size == 4
