"""Compiled networks train as others do, whoever's turn it is, and are compiled once for all clients and rounds."""

import copy

import lightning as L
import pytest
import torch
from torch import nn

from fedgen.callbacks import CompileSteps
from fedgen.callbacks.compile_steps import check_backend
from fedgen.clients import FederatedDataModule
from fedgen.clients.partitions import Natural
from fedgen.federated import FedAdam, FedAvgStrategy, Scaffold
from fedgen.models import DDPM, WGANGP
from fedgen.models.networks import SmallCritic, SmallGenerator, UNet
from tests.federated.modules import Automatic, Manual, TwoOptimizers, make_data, make_trainer, same, weights
from tests.federated.rank_runs import pictures
from tests.quick import first_quick

pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # dynamo looks
INTERVAL = 3


class Counted:
    """A backend that runs a program as it is, and counts programs: without the callback's own, which it tries first."""

    def __init__(self, tried=1):
        self.programs = -tried

    def __call__(self, graph, inputs, **options):
        self.programs += 1
        return graph.forward


class Programs(L.Callback):
    """The number of programs after each client's turn."""

    def __init__(self, backend):
        self.backend, self.seen = backend, []

    def on_train_batch_end(self, *_):
        self.seen.append(self.backend.programs)


def fit(module, callbacks=(), rounds=3, data=None, strategy=None, **options):
    torch.manual_seed(0)
    strategy = strategy or FedAvgStrategy(INTERVAL, seed=0)
    trainer = make_trainer(strategy, rounds, callbacks=list(callbacks), **options)
    trainer.fit(module, data or make_data())
    return trainer


def made(kind, *arguments):
    torch.manual_seed(1)
    return kind(*arguments)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Automatic, Manual, TwoOptimizers])
def test_the_first_client_compiles_and_no_other_client_or_round(kind):
    backend = Counted()
    watch = Programs(backend)
    fit(made(kind), [CompileSteps(backend=backend), watch])
    clients = 3
    assert len(watch.seen) == 3 * clients
    # all networks; the second of the pair trains at every third step, which each turn has
    assert watch.seen == [len(list(made(kind).children()))] * len(watch.seen)


def test_what_the_strategy_can_be_asked_for_compiles_nothing_anew():
    backend = Counted()
    options = {"optimizer_state": "keep", "personal": ["net.4.*"], "client_algorithm": Scaffold()}
    strategy = FedAvgStrategy(INTERVAL, seed=0, cohort_size=2, server_optimizer=lambda p: FedAdam(p, 0.1), **options)
    fit(made(Automatic, "SGD"), [CompileSteps(backend=backend)], 5, strategy=strategy)
    assert backend.programs == 1


@pytest.mark.slow
def test_batches_of_all_sizes_share_one_further_program():
    backend = Counted()
    watch = Programs(backend)
    data = make_data(sizes=(6, 3, 11, 2), batch_size=4)
    fit(made(Automatic), [CompileSteps(backend=backend), watch], 4, data)
    assert backend.programs <= 2
    assert watch.seen[4:] == [watch.seen[4]] * len(watch.seen[4:])  # nothing after the first round


class FirstShapes(Counted):
    """Keeps the sizes that the first program of each network takes, apart from those that it leaves open."""

    def __init__(self):
        super().__init__()
        self.fixed = []

    def __call__(self, graph, inputs, **options):
        self.fixed.append(all(isinstance(one, torch.Tensor) and not _is_open(one) for one in inputs))
        return super().__call__(graph, inputs, **options)


def _is_open(tensor):
    return any(isinstance(size, torch.SymInt) for size in tensor.shape)


@pytest.mark.slow
def test_first_programs_are_for_the_shapes_that_they_see_whatever_was_compiled_before():
    backend = FirstShapes()
    for batch_size in (4, 3):
        fit(made(Automatic), [CompileSteps(backend=backend)], 1, make_data(sizes=(12, 12), batch_size=batch_size))
    assert backend.fixed == [True] * 4  # of the callback's trial, a sum of vectors, and of the network; twice


@pytest.mark.parametrize("kind", first_quick([Automatic, Manual, TwoOptimizers]))
def test_results_are_the_uncompiled_ones_to_the_bit_where_the_backend_changes_nothing(kind):
    plain, compiled = made(kind), made(kind)
    fit(plain)
    fit(compiled, [CompileSteps(backend=Counted())])
    assert same(weights(plain), weights(compiled))


@pytest.mark.slow
def test_results_are_the_uncompiled_ones_to_rounding():
    plain, compiled = made(Automatic, "SGD"), made(Automatic, "SGD")
    for module in (plain, compiled):
        module.net[3].p = 0.0  # compiled code draws its own
    fit(plain)
    fit(compiled, [CompileSteps(backend="inductor")])
    for name, value in weights(plain).items():
        torch.testing.assert_close(weights(compiled)[name], value, rtol=1e-4, atol=1e-5)


class Sees(L.Callback):
    """What the network and a copy of it give in eval mode, before and after the network's weights move."""

    def on_train_epoch_end(self, trainer, module):
        points, copied = torch.randn(4, 3), copy.deepcopy(module.net).eval()
        self.stands_in = "forward" in vars(module.net)
        module.net.eval()
        self.given = [module.net(points), copied(points)]
        with torch.no_grad():
            module.net[4].bias.add_(1.0)
        self.given += [module.net(points), copied(points)]
        module.net.train()


def test_eval_mode_and_copies_run_uncompiled_and_copies_have_weights_of_their_own():
    backend, sees = Counted(), Sees()
    fit(made(Automatic), [CompileSteps(backend=backend), sees], 1)
    assert sees.stands_in
    assert backend.programs == 1
    before, of_copy, after, of_copy_later = sees.given
    assert torch.equal(before, of_copy)
    assert torch.equal(before, of_copy_later)
    torch.testing.assert_close(after, before + 1.0)


@pytest.mark.slow
@pytest.mark.parametrize("fails", [True, False])
def test_it_is_undone_when_fitting_ends_or_fails(fails):
    class Stops(L.Callback):
        def on_train_epoch_end(self, trainer, module):
            if fails:
                raise ArithmeticError("stop")

    module, callback = made(Automatic), CompileSteps(mode="reduce-overhead", backend=Counted())
    if fails:
        with pytest.raises(ArithmeticError, match="stop"):
            fit(module, [callback, Stops()])
    else:
        fit(module, [callback, Stops()])
    assert "forward" not in vars(module.net)
    assert "training_step" not in vars(module)


@pytest.mark.slow
def test_a_forward_that_was_set_on_the_network_is_compiled_and_comes_back():
    module, calls = made(Automatic), []
    own = module.net.forward

    def forward(x):
        calls.append(1)
        return own(x)

    module.net.forward = forward
    fit(module, [CompileSteps(backend=Counted())], 1)
    assert module.net.forward is forward
    assert calls


@pytest.mark.slow
def test_cuda_graphs_are_told_of_every_iteration_and_other_modes_of_none(monkeypatch):
    told = []
    monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", lambda: told.append(1))
    fit(made(Automatic), [CompileSteps(backend=Counted())], 1)
    assert told == []
    fit(made(Automatic), [CompileSteps(mode="reduce-overhead", backend=Counted())], 2)
    assert len(told) == 2 * 3 * INTERVAL


@pytest.mark.slow
def test_parts_are_named_or_are_those_that_train():
    class Mixed(Automatic):
        def __init__(self):
            super().__init__()
            self.frozen = nn.Linear(3, 3).requires_grad_(False)
            self.pair = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3).requires_grad_(False)])

        def training_step(self, batch, batch_idx):
            return super().training_step((self.pair[1](self.pair[0](self.frozen(batch[0]))), batch[1]), batch_idx)

    for networks, count in ((None, 2), (["pair.1", "frozen"], 2), (["net"], 1)):
        backend = Counted()
        fit(made(Mixed), [CompileSteps(networks, backend=backend)], 1)
        assert backend.programs == count


def test_a_network_that_no_step_calls_is_told_of_once():
    class Around(Automatic):
        def training_step(self, batch, batch_idx):
            found = batch[0]
            for layer in self.net:
                found = layer(found)
            return nn.functional.cross_entropy(found, batch[1])

    with pytest.warns(UserWarning, match="CompileSteps") as told:
        fit(made(Around), [CompileSteps(backend=Counted())], 3)
    assert len([one for one in told if "CompileSteps" in str(one.message)]) == 1


class Bare(L.LightningModule):
    """A parameter and no network."""

    def __init__(self):
        super().__init__()
        self.mean = nn.Parameter(torch.zeros(3))

    def training_step(self, batch, batch_idx):
        return (batch[0] - self.mean).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


@pytest.mark.parametrize(
    ("make", "networks", "words"),
    [
        (Automatic, ["critic"], r"networks=\['critic'\]: Automatic has no part 'critic'; those that train are net"),
        (Automatic, [""], "has no part ''"),
        (Bare, None, "finds no network in Bare"),
    ],
)
def test_what_cannot_be_compiled_is_told_before_training(make, networks, words):
    with pytest.raises(ValueError, match=words):
        fit(make(), [CompileSteps(networks, backend=Counted())])


@pytest.mark.slow
def test_a_model_with_a_setting_of_its_own_is_told_of_it():
    model = WGANGP(SmallGenerator(width=4), SmallCritic(width=4))
    data = FederatedDataModule(pictures(), Natural(), 8, held_out=0.0, seed=1)
    with pytest.raises(ValueError, match="WGANGP"):
        fit(model, [CompileSteps(backend=Counted())], data=data)
    backend = Counted()
    fit(model, [CompileSteps(["generator"], backend=backend)], 2, data)
    assert 0 < backend.programs <= 4  # with gradients and without, for sizes of batches


def test_a_backend_that_does_not_work_is_told_with_the_remedy():
    def broken(graph, inputs, **options):
        raise OSError("no g++ here")

    with pytest.raises(RuntimeError, match="install"):
        fit(made(Automatic), [CompileSteps(backend=broken)])
    with pytest.raises(RuntimeError, match="nonsense"):
        check_backend("nonsense", torch.device("cpu"))


@pytest.mark.slow
def test_networks_of_one_class_have_programs_of_their_own():
    """More networks of one class than the programs that one code object may have."""

    class Many(Automatic):
        def __init__(self):
            super().__init__()
            self.nets = nn.ModuleList(nn.Sequential(nn.Linear(3, 3), nn.Tanh()) for _ in range(9))

        def training_step(self, batch, batch_idx):
            points = batch[0]
            for net in self.nets:
                points = net(points)
            return super().training_step((points, batch[1]), batch_idx)

    backend = Counted()
    fit(made(Many), [CompileSteps(backend=backend)], 2)
    assert backend.programs == 10


@pytest.mark.parametrize("way", first_quick(["module", "part"]))
def test_a_module_that_the_user_has_compiled_is_not_compiled_anew_by_turns_either(way):
    backend = Counted(tried=0)
    watch, module = Programs(backend), made(Automatic)
    if way == "module":  # Lightning then runs compiled steps
        module = torch.compile(module, backend=backend)
    else:
        module.net.compile(backend=backend)
    fit(module, [watch])
    assert watch.seen[0] > 0
    assert watch.seen == [watch.seen[0]] * 9


@pytest.mark.slow
def test_the_kits_own_setting_is_not_compiled_anew_by_turns_either(monkeypatch):
    real, backend = torch.compile, Counted(tried=0)
    monkeypatch.setattr(torch, "compile", lambda function, **_: real(function, backend=backend))
    watch = Programs(backend)
    data = FederatedDataModule(pictures(), Natural(), 4, held_out=0.0, seed=1)
    unet = UNet(image_size=8, channels=1, widths=[8], layers=1, attention=[])
    fit(DDPM(unet, lr=1e-3, compile=True), [watch], 2, data)
    assert watch.seen[0] > 0
    assert watch.seen == [watch.seen[0]] * 6
