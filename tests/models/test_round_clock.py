import lightning
import pytest
import torch

from fedgen.models.round_clock import RoundClock
from tests.trainers import quiet_trainer

pytestmark = pytest.mark.filterwarnings("ignore:.*(does not have many workers|LeafSpec|in eval mode)")


class Counter(RoundClock):
    """Notes what the clock says."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.automatic_optimization = False
        self.iterations, self.rounds, self.turns = [], [], []

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def training_step(self, batch, batch_idx):
        self.iterations.append(self.iteration(batch_idx))

    def on_turn_end(self, completed):
        self.turns.append(completed)

    def on_round_end(self, iterations):
        self.rounds.append(iterations)


class RoundsSeen(lightning.Callback):
    """How many rounds had ended when callbacks heard of an epoch's end."""

    def __init__(self):
        self.seen = []

    def on_train_epoch_end(self, trainer, module):
        self.seen.append(len(module.rounds))


def test_under_a_stock_strategy_an_epoch_is_a_round_that_ends_before_callbacks_hear_of_it(fit):
    module, callback = Counter(), RoundsSeen()
    fit(module, batches=3, epochs=2, callbacks=[callback])
    assert module.rounds == [3, 3]
    assert module.turns == [True] * 6
    assert callback.seen == [1, 2]
    assert module.iterations == [0, 1, 2, 3, 4, 5]


def test_a_strategy_that_calls_round_ends_itself_is_left_to_it(fit):
    class Calling(lightning.pytorch.strategies.SingleDeviceStrategy):
        calls_round_end = True

    module = Counter()
    trainer = quiet_trainer(2, strategy=Calling("cpu"))
    trainer.fit(module, torch.utils.data.DataLoader(torch.zeros(3, 1)))
    assert module.rounds == module.turns == []
    assert module.iterations == [0, 1, 2, 0, 1, 2]
