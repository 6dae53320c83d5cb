"""Channels last in memory: another order of the same numbers, kept through clients' turns."""

import pytest
import torch
from torch import nn

from fedgen.callbacks import ChannelsLast, CompileSteps
from fedgen.federated import FedAdam, FedAvgStrategy
from tests.federated.modules import Automatic, make_data, make_trainer, weights

pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # dynamo looks


class Convolved(Automatic):
    """Points as images of 1 x 3 pixels, through two convolutions."""

    def __init__(self):
        super().__init__("SGD")
        layers = nn.Conv2d(2, 8, (1, 3), padding=(0, 1)), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, (1, 3))
        self.net = nn.Sequential(*layers, nn.Flatten(), nn.Linear(4, 2))

    def training_step(self, batch, batch_idx):
        images = torch.stack([batch[0], -batch[0]], 1)[:, :, None]
        return super().training_step((images, batch[1]), batch_idx)


def fit(callbacks, **options):
    torch.manual_seed(0)
    module = Convolved()
    strategy = FedAvgStrategy(4, seed=0, server_optimizer=lambda p: FedAdam(p, 0.05), **options)
    make_trainer(strategy, 3, callbacks=callbacks).fit(module, make_data())
    return module


def lies_last(tensor):
    return tensor.is_contiguous(memory_format=torch.channels_last) and not tensor.is_contiguous()


@pytest.mark.slow
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("optimizer_state", ["reset", "keep", "average"])
def test_turns_keep_the_format_and_give_the_same_weights(optimizer_state, compiled):
    def programs(graph, inputs, **options):
        if len(inputs) > 1:  # one is the callback's own, which it tries first
            seen.append(graph)
        return graph.forward

    seen = []
    callbacks = [ChannelsLast(), *([CompileSteps(backend=programs)] if compiled else [])]
    plain = fit([], optimizer_state=optimizer_state)
    module = fit(callbacks, optimizer_state=optimizer_state)
    assert lies_last(module.net[0].weight)
    assert lies_last(module.net[3].weight)
    for name, value in weights(plain).items():
        torch.testing.assert_close(weights(module)[name], value, rtol=1e-4, atol=1e-5)
    assert len(seen) == compiled  # programs are made for strides: one, so these have stayed


def test_a_module_without_convolutions_is_told_of():
    with pytest.warns(UserWarning, match="ChannelsLast"):
        make_trainer(FedAvgStrategy(2, seed=0), 1, callbacks=[ChannelsLast()]).fit(Automatic(), make_data())
