"""Parts of Lightning that need nothing of the strategy: callbacks, profilers, precisions and hooks as they are."""

import pytest
import torch
from lightning.pytorch.callbacks import BackboneFinetuning, ModelPruning, Timer
from lightning.pytorch.profilers import AdvancedProfiler, SimpleProfiler
from torch import nn

from fedgen.federated import FedAvgStrategy
from tests.federated.modules import Automatic, Manual, make_data, make_trainer, same, weights


def train(module, rounds=2, data=None, interval=2, **options):
    torch.manual_seed(3)
    strategy = FedAvgStrategy(interval, seed=0)
    trainer = make_trainer(strategy, rounds, **options)
    trainer.fit(module, data or make_data())
    return trainer


def made(kind=Automatic):
    torch.manual_seed(3)
    return kind()


@pytest.mark.parametrize(
    "options",
    [
        {"profiler": SimpleProfiler()},
        {"profiler": AdvancedProfiler()},
        {"callbacks": [Timer("00:01:00:00")]},
    ],
    ids=["simple profiler", "advanced profiler", "timer"],
)
def test_what_watches_changes_nothing(options):
    plain, watched = made(), made()
    train(plain)
    train(watched, **options)
    assert same(weights(plain), weights(watched))


def test_double_precision_is_kept_by_the_average():
    module = made()
    before = weights(module)
    train(module, precision="64-true")
    after = weights(module)
    assert {value.dtype for value in after.values() if value.is_floating_point()} == {torch.float64}
    assert not torch.equal(before["net.0.weight"].double(), after["net.0.weight"])


class Configured(Automatic):
    """A net that is made once training starts."""

    def __init__(self):
        super().__init__()
        self.made, self.net = self.net, None

    def configure_model(self):
        if self.net is None:
            self.net, self.made = self.made, None


def test_a_model_that_is_made_in_configure_model_trains_as_any_other():
    plain, configured = made(), made(Configured)
    train(plain)
    train(configured)
    assert same(weights(plain), weights(configured))


@pytest.mark.filterwarnings("ignore:a `training_step` returned None", "ignore:`training_step` returned `None`")
def test_a_step_that_returns_none_has_no_gradient():
    class Skipping(Automatic):
        def training_step(self, batch, batch_idx):
            return None if batch_idx == 1 else super().training_step(batch, batch_idx)

    once, skipping = made(), made(Skipping)
    train(once, rounds=1, interval=1)
    train(skipping, rounds=1, interval=2)
    assert torch.equal(once.net[0].weight, skipping.net[0].weight)


def test_pruned_weights_stay_pruned_over_clients():
    """Pruning gives a layer's weight another name and a mask beside it, after the first round."""
    module = made()
    pruning = ModelPruning("l1_unstructured", [(module.net[0], "weight")], amount=0.5, make_pruning_permanent=False)
    train(module, rounds=3, callbacks=[pruning])
    mask = module.net[0].weight_mask
    assert mask.sum() < 0.5 * mask.numel()
    assert torch.equal(module.net[0].weight == 0, mask == 0)


class TwoParts(Automatic):
    """A backbone and a head; the optimizer holds the head, and is given the backbone when it thaws."""

    def __init__(self):
        super().__init__()
        self.backbone, self.head = nn.Linear(3, 3), self.net
        del self.net

    def training_step(self, batch, batch_idx):
        return nn.functional.cross_entropy(self.head(self.backbone(batch[0])), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD([p for p in self.parameters() if p.requires_grad], lr=0.05)


def test_a_backbone_trains_from_the_round_on_in_which_it_thaws():
    found = []
    for rounds in (1, 2):
        module = made(TwoParts)
        before = weights(module)
        tuning = BackboneFinetuning(unfreeze_backbone_at_epoch=1, verbose=False, backbone_initial_lr=0.01)
        trainer = train(module, rounds, callbacks=[tuning])
        trained = {name.split(".")[0] for name in trainer.strategy.exchange.trained}
        found.append((trained, torch.equal(module.backbone.weight, before["backbone.weight"])))
    assert found == [({"head"}, True), ({"head", "backbone"}, False)]


class Accumulating(Manual):
    """Steps after every second iteration."""

    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers()
        self.manual_backward(Automatic.training_step(self, batch, batch_idx))
        if batch_idx % 2 == 1:
            optimizer.step()
            optimizer.zero_grad()


def test_gradients_that_a_turn_leaves_without_a_step_are_warned_of():
    with pytest.warns(UserWarning, match="accumulates"):
        train(made(Accumulating), rounds=1, interval=3)
