"""Layers that get their shapes from the first batch train, and finding the shapes leaves no trace."""

import random

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from torch import nn

from fedgen.federated import FedAdam, FedAvgStrategy
from fedgen.federated.lightning.lazy_parameters import materialise
from fedgen.seeds import seed_all
from tests.federated.modules import Automatic, Manual, make_data, make_trainer, same, weights


def lazy_net():
    return nn.Sequential(
        nn.LazyLinear(8), nn.LazyBatchNorm1d(), nn.ReLU(), nn.Unflatten(1, (2, 4)), nn.LazyConv1d(3, 2), nn.Flatten(),
        nn.LazyLinear(2),
    )  # fmt: skip


def eager_net():
    return nn.Sequential(
        nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Unflatten(1, (2, 4)), nn.Conv1d(2, 3, 2), nn.Flatten(),
        nn.Linear(9, 2),
    )  # fmt: skip


class Lazy(Automatic):
    own_turn_state = ("calls",)  # recorded for the tests, over turns

    def __init__(self):
        super().__init__()
        self.net = lazy_net()
        self.calls = []

    def training_step(self, batch, batch_idx):
        self.calls.append(batch_idx)
        loss = super().training_step(batch, batch_idx)
        self.log("loss", loss)
        return loss


class LazyManual(Manual):
    def __init__(self):
        super().__init__()
        self.net = lazy_net()


class LazyPair(Manual):
    """A generator and a critic: the second one's lazy layer comes after the first one's step."""

    def __init__(self):
        super().__init__()
        self.net, self.a, self.b = nn.Identity(), nn.LazyLinear(4), nn.LazyLinear(2)

    def training_step(self, batch, batch_idx):
        first, second = self.optimizers()
        for optimizer, net in ((first, self.a), (second, nn.Sequential(self.a, self.b))):
            self.toggle_optimizer(optimizer)
            loss = net(batch[0]).square().mean()
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
            self.untoggle_optimizer(optimizer)

    def configure_optimizers(self):
        return torch.optim.Adam(self.a.parameters(), lr=0.02), torch.optim.SGD(self.b.parameters(), lr=0.1)


class Own(Automatic):
    """Code of one's own that materialises a parameter."""

    def __init__(self):
        super().__init__()
        self.bias = nn.UninitializedParameter()

    def training_step(self, batch, batch_idx):
        if isinstance(self.bias, nn.UninitializedParameter):
            self.bias.materialize((batch[0].shape[1],))
            nn.init.normal_(self.bias)
        return super().training_step((batch[0] + self.bias, batch[1]), batch_idx)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.05)


def fit(module, rounds=2, seed=0, ckpt_path=None, callbacks=(), **options):
    strategy = FedAvgStrategy(3, seed=seed, **options)
    trainer = make_trainer(strategy, rounds, callbacks=list(callbacks), enable_checkpointing=bool(callbacks))
    trainer.fit(module, make_data(), ckpt_path=ckpt_path)
    return trainer


def test_lazy_layers_train_as_the_same_layers_with_the_same_first_values():
    reference = Lazy()
    seed_all(0, "lazy")
    reference.net = eager_net()
    fit(reference)
    module = Lazy()
    fit(module)
    assert same(weights(reference), weights(module))
    assert reference.calls == module.calls
    assert [type(part) for part in module.net] == [type(part) for part in reference.net]


@pytest.mark.parametrize("kind", [LazyManual, LazyPair, Own])
def test_first_values_follow_from_the_strategys_seed_alone(kind):
    found = []
    for draws, seed in ((1, 0), (2, 0), (2, 1)):
        torch.manual_seed(draws)
        torch.rand(draws)
        eager = kind() if kind is not Own else _with_net(Own())
        fit(eager, seed=seed)
        found.append(weights(eager))
    assert same(found[0], found[1])
    assert not same(found[0], found[2])


def _with_net(module):
    for parameter in module.net.parameters():
        nn.init.constant_(parameter, 0.1)
    return module


def test_finding_the_shapes_leaves_no_trace():
    class Watched(Lazy):
        def on_fit_start(self):
            self.found = [self.calls, [p.grad for p in self.parameters()], self.net[1].num_batches_tracked.item()]
            self.streams = torch.get_rng_state(), random.getstate()

    module = Watched()
    torch.manual_seed(5)
    random.seed(5)
    streams = torch.get_rng_state(), random.getstate()
    trainer = fit(module, 0)
    assert module.found == [[], [None] * 8, 0]
    assert torch.equal(module.streams[0], streams[0])
    assert module.streams[1] == streams[1]
    assert trainer.global_step == 0
    assert trainer.callback_metrics == {}
    assert "log" not in vars(module)


def test_a_module_without_lazy_layers_is_not_copied():
    class Uncopied(Automatic):
        def __deepcopy__(self, memo):
            raise AssertionError("copied")

    fit(Uncopied(), 1)


@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`")
@pytest.mark.parametrize("kind", [Lazy, LazyPair])
def test_lazy_layers_resume_to_the_bit(tmp_path, kind):
    options = {"optimizer_state": "keep", "server_optimizer": lambda p: FedAdam(p, lr=0.1)}
    whole, resumed = kind(), kind()
    fit(whole, 3, callbacks=[ModelCheckpoint(tmp_path, "{epoch}", save_top_k=-1)], **options)
    fit(resumed, 3, ckpt_path=tmp_path / "epoch=1.ckpt", **options)
    assert same(weights(whole), weights(resumed))


def test_a_layer_that_no_batch_reaches_is_named_with_the_remedy():
    class Idle(Lazy):
        def __init__(self):
            super().__init__()
            self.idle = nn.LazyLinear(2)

    with pytest.raises(MisconfigurationException, match="uninitialised"):
        fit(Idle())


def test_a_step_that_fails_is_told_with_its_error():
    class Fails(Lazy):
        def training_step(self, batch, batch_idx):
            raise ValueError("no such luck")

    with pytest.raises(MisconfigurationException, match="ValueError"):
        fit(Fails())


def test_materialise_is_what_fitting_calls():
    module = Lazy()
    trainer = fit(module, 0)
    before = weights(module)
    materialise(trainer, 7)
    assert same(before, weights(module))
