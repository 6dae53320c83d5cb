"""Compressed updates in training: error feedback by hand, its identity, bytes, draws, and what is kept over resumes."""

import copy
import logging
from itertools import combinations

import lightning as L
import pytest
import torch
import yaml
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from torch import nn

from fedgen.clients import FederatedDataModule
from fedgen.data import Examples
from fedgen.federated import FedAdam, FedAvgM, FedAvgStrategy, Mean, PrivateMean, Scaffold
from fedgen.federated.compression import QSGD, PowerSGD, ScaledSign, TopK
from fedgen.federated.lightning.checks import check_compression
from tests.federated.modules import (
    Automatic,
    Contiguous,
    TwoOptimizers,
    make_data,
    make_trainer,
    same,
    strategy_of,
    weights,
)
from tests.federated.test_resume import straight_and_resumed, train
from tests.federated.test_strategy import Failing
from tests.quick import first_quick

KINDS = {"8 bits": QSGD(8), "4 bits": QSGD(4), "top": TopK(0.2), "sign": ScaledSign(), "low rank": PowerSGD(1)}
exists = pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty")
kinds = pytest.mark.parametrize("compression", KINDS.values(), ids=KINDS.keys())


def fit(module, data, rounds, callbacks=(), **options):
    strategy = FedAvgStrategy(**{"communication_interval": 4, "seed": 0, **options})
    make_trainer(strategy, rounds, callbacks=list(callbacks)).fit(module, data)
    return strategy


class Two(L.LightningModule):
    """Two numbers w that one step halfway approaches the client's point."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(2))

    def training_step(self, batch, batch_idx):
        return (self.w - batch[0][0, :2]).square().sum() / 2

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.5)


class Kept(L.Callback):
    """Copies the server's weights and what clients have not sent, after every round."""

    def __init__(self):
        self.weights, self.errors = [], []

    def on_train_epoch_end(self, trainer, pl_module):
        self.weights.append(weights(pl_module))
        unsent = trainer.strategy.round.memory.unsent
        self.errors.append(copy.deepcopy({client: kept.errors for client, kept in unsent.items()}))


def make_point(*numbers):
    points = Examples(torch.tensor([[*numbers, 0.0]]), torch.zeros(1, dtype=torch.int64), "point/train", ("only",))
    return FederatedDataModule(points, Contiguous((1,)), batch_size=1, seed=0, held_out=0.0)


def test_three_rounds_of_error_feedback_by_hand():
    """The point is (4, 3); a step goes half of the way there, and of two numbers the larger is sent.

    Round 0: (2, 1.5), of which (2, 0) is sent. Round 1 from (2, 0): (1, 1.5) + (0, 1.5), of which (0, 3) is sent.
    Round 2 from (2, 3): (1, 0) + (1, 0), all of which is sent.
    """
    kept = Kept()
    fit(Two(), make_point(4.0, 3.0), 3, [kept], communication_interval=1, compression=TopK(0.5))
    assert [state["w"].tolist() for state in kept.weights] == [[2, 0], [2, 3], [4, 3]]
    assert [errors[0]["w"].tolist() for errors in kept.errors] == [[0, 1.5], [1, 0], [0, 0]]


def test_without_error_feedback_nothing_is_kept():
    kept = Kept()
    rule = TopK(0.5, error_feedback=False)
    fit(Two(), make_point(4.0, 3.0), 3, [kept], communication_interval=1, compression=rule)
    assert [state["w"].tolist() for state in kept.weights] == [[2, 0], [2, 1.5], [3, 1.5]]
    assert kept.errors == [{}, {}, {}]


class Watched(Automatic):
    """Adds up each client's updates."""

    def __init__(self, dtype=torch.float32):
        super().__init__("SGD")
        self.net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2)).to(dtype)
        self.seen = {}.setdefault  # of all turns; a dictionary of the module's own would be state of a turn

    def on_turn_start(self, turn):
        self.note = (turn.client, weights(self.net))

    own_turn_state = ("note",)

    def training_step(self, batch, batch_idx):
        return super().training_step((batch[0].to(self.net[0].weight.dtype), batch[1]), batch_idx)

    def on_turn_end(self, completed):
        client, before = self.note
        total = self.seen(client, {name: torch.zeros_like(t, dtype=torch.float64) for name, t in before.items()})
        for name, tensor in weights(self.net).items():
            total[name] += tensor.double() - before[name].double()


class Taken(Mean):
    """Adds up what the server takes in of each client."""

    def __init__(self):
        super().__init__()
        self.seen = {}

    def start(self, server):
        super().start(server)
        self.server = [tensor.double() for tensor in server]

    def add(self, client, update, weight):
        total = self.seen.setdefault(client, [torch.zeros_like(tensor) for tensor in self.server])
        for sum, new, old in zip(total, update, self.server):
            sum += new.double() - old
        super().add(client, update, weight)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["top", "sign", "low rank"])
def test_what_came_in_is_the_sum_of_the_updates_without_what_is_kept(name, dtype):
    torch.manual_seed(0)
    module, taken = Watched(dtype), Taken()
    strategy = fit(module, make_data(), 5, aggregator=taken, compression=KINDS[name], cohort_size=2)
    for client, kept in strategy.round.memory.unsent.items():
        for key, total in zip(strategy.exchange.shared, taken.seen[client], strict=True):
            wanted = module.seen(client, None)[key.removeprefix("net.")]
            torch.testing.assert_close(total, wanted - kept.errors[key].double(), rtol=0, atol=2e-6)
        assert kept.errors["net.0.weight"].any()


def test_sending_all_is_federated_averaging():
    torch.manual_seed(0)
    plain = Automatic("SGD")
    module = copy.deepcopy(plain)
    fit(plain, make_data(), 3)
    fit(module, make_data(), 3, compression=TopK(1.0))
    for name, tensor in weights(plain).items():
        torch.testing.assert_close(weights(module)[name], tensor)


@kinds
def test_a_run_ends_the_same_again(compression):
    def run():
        torch.manual_seed(0)
        module, data = Automatic("SGD"), make_data()
        fit(module, data, 2, compression=compression)
        return weights(module)

    assert same(run(), run())


class Wide(Two):
    """Its updates are always the same, half of the smallest level for all numbers but one, whatever was drawn before.

    Turns draw nothing themselves, so that the seed matters to the compression alone.
    """

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(200))

    def training_step(self, batch, batch_idx):
        target = torch.full_like(self.w, 1 / 2)
        target[0] = 1
        return (self.w - self.w.detach() - target).square().sum() / 2


class EachTaken(Mean):
    """Keeps what the server takes in, by round and client."""

    def __init__(self):
        super().__init__()
        self.seen = {}

    def start(self, server):
        super().start(server)
        self.server = server[0].clone()

    def add(self, client, update, weight):
        self.seen[self.federation.round, client] = update[0] - self.server
        super().add(client, update, weight)


def test_seeds_rounds_and_clients_draw_anew():
    """Of two clients in two rounds, and those of another seed, any two sets of draws agree by chance alone."""
    taken = [EachTaken() for _ in range(3)]
    for seed, each in zip((0, 1, 0), taken):
        options = {"seed": seed, "aggregator": each, "communication_interval": 1}
        fit(Wide(), make_data((4, 4)), 2, compression=QSGD(2, None), **options)
    assert taken[0].seen.keys() == {(0, 0), (0, 1), (1, 0), (1, 1)}
    assert same(taken[0].seen, taken[2].seen)
    drawn = [*taken[0].seen.values(), *taken[1].seen.values()]
    for update in drawn:
        assert set(update.tolist()) == {0.0, 0.5}
    for first, second in combinations(drawn, 2):
        assert 0.3 < (first == second).double().mean() < 0.7


@exists
@kinds
@pytest.mark.parametrize("kind", first_quick([Automatic, TwoOptimizers]))
def test_resuming_ends_with_the_same_weights_to_the_bit(tmp_path, kind, compression):
    options = {"cohort_size": 2, "server_optimizer": lambda p: FedAdam(p, lr=0.1), "compression": compression}
    (whole, one), (resumed, other) = straight_and_resumed(kind, tmp_path, lambda: options)
    assert same(weights(whole), weights(resumed))
    straight, memory = (trainer.strategy.round.memory for trainer in (one, other))
    assert straight.unsent.keys() == memory.unsent.keys()
    for client, kept in straight.unsent.items():
        assert same(kept.errors, memory.unsent[client].errors)
        assert same(kept.starts, memory.unsent[client].starts)


@pytest.mark.parametrize("how", ["raise", "diverge"])
def test_a_client_left_out_keeps_what_it_had(how):
    kept = Kept()
    torch.manual_seed(0)
    with pytest.warns(UserWarning, match="client"):
        strategy = fit(Failing(how), make_data(), 2, [kept], compression=TopK(0.2))
    assert [entry["client"] for entry in strategy.left_out] == [1]
    before, after = kept.errors
    assert same(before[1], after[1])
    assert not same(before[0], after[0])


def test_an_update_too_large_for_its_type_leaves_the_client_out():
    class Jumps(Two):
        def on_turn_end(self, completed):
            if completed and self.turn == 1:
                with torch.no_grad():
                    self.w.fill_(3e38)

        own_turn_state = ("turn",)

        def on_turn_start(self, turn):
            self.turn = turn.client

    with pytest.warns(UserWarning, match="norm"):
        strategy = fit(Jumps(), make_data(), 1, compression=QSGD(8, None, "2"))
    assert [entry["client"] for entry in strategy.left_out] == [1]


@pytest.mark.slow
def test_personal_tensors_are_not_compressed_and_parameters_of_no_elements_do_no_harm():
    class Empty(Automatic):
        def __init__(self):
            super().__init__("SGD")
            self.net.nothing = nn.Parameter(torch.zeros(0, 3))

        def training_step(self, batch, batch_idx):
            self.net[0](batch[0])
            return nn.functional.cross_entropy(self.net[:5](batch[0]), batch[1]) + self.net.nothing.sum()

    for compression in KINDS.values():
        torch.manual_seed(0)
        strategy = fit(Empty(), make_data(), 2, compression=compression, personal=["net.4.*"])
        for kept in strategy.round.memory.unsent.values():
            assert {*kept.errors} == {"net.nothing", "net.0.weight", "net.0.bias", "net.1.weight", "net.1.bias"}


def test_the_bytes_of_a_round_by_hand(caplog):
    """Weights 8 x 3 and 2 x 8, biases 8 and 2, BatchNorm's 8 and 8, and its moments 8 and 8, which are sent whole."""
    sizes, moments = (24, 8, 8, 8, 16, 2), 2 * 8 * 4
    with caplog.at_level(logging.INFO):
        strategy = fit(Automatic(), make_data(), 1, compression=QSGD(4, block=10))
    packed = sum(-(-n // 2) + 4 * -(-n // 10) for n in sizes)
    assert strategy.exchange.num_bytes == packed + moments == 33 + 4 * 9 + 64
    assert strategy.exchange.num_bytes_down == 4 * sum(sizes) + moments + 8  # a counter
    rows = {row.fate: row.num_bytes for row in strategy.state_table()}
    assert rows["trained, averaged"] == packed
    assert "each client sends 141 B a round and receives 336 B" in caplog.text  # with the counter
    with_variates = fit(Automatic(), make_data(), 1, compression=TopK(0.1), client_algorithm=Scaffold())
    assert with_variates.exchange.num_bytes == 8 * sum(-(-n // 10) for n in sizes) + moments + 4 * sum(sizes)


@kinds
def test_other_rules_of_server_and_clients_go_together_with_it(compression):
    for options in (
        {"server_optimizer": lambda p: FedAvgM(p, lr=0.5)},
        {"client_algorithm": Scaffold(), "optimizer_state": "average"},
    ):
        torch.manual_seed(0)
        module = Automatic("SGD")
        before = weights(module)
        fit(module, make_data(), 2, compression=compression, **options)
        assert not same(before, weights(module))
        assert all(tensor.isfinite().all() for tensor in weights(module).values())


def test_a_second_fit_of_the_module_goes_on_with_what_was_not_sent_and_one_of_another_does_not():
    strategy, module = FedAvgStrategy(1, seed=0, compression=TopK(0.5)), Two()
    trainer = make_trainer(strategy, 1)
    trainer.fit(module, make_point(4.0, 3.0))
    trainer.fit_loop.max_epochs = 3
    trainer.fit(module, make_point(4.0, 3.0))
    assert module.w.tolist() == [4, 3]
    trainer.fit_loop.max_epochs = 4
    trainer.fit(other := Two(), make_point(4.0, 3.0))
    assert other.w.tolist() == [2, 0]


@exists
def test_a_checkpoint_with_what_was_not_sent_needs_the_compression(tmp_path):
    train(Automatic(), tmp_path, 1, compression=TopK(0.2))
    for other, said in ((None, "there is no `compression`"), (QSGD(), "QSGD does not keep it")):
        with pytest.raises(MisconfigurationException, match=said):
            train(Automatic(), tmp_path, 2, tmp_path / "epoch=0.ckpt", compression=other)


@exists
def test_a_checkpoint_from_before_compression_begins_with_nothing_kept(tmp_path):
    train(Automatic(), tmp_path, 1)
    path = tmp_path / "epoch=0.ckpt"
    checkpoint = torch.load(path, weights_only=True)
    assert checkpoint["fedavg"].pop("compression") == {"clients": {}}
    torch.save(checkpoint, path)
    trainer = train(Automatic(), tmp_path, 2, path, compression=TopK(0.2))
    assert trainer.strategy.round.memory.unsent.keys() == {0, 1, 2}


@exists
@pytest.mark.parametrize("part", ["errors", "clients"])
def test_a_damaged_or_other_checkpoint_is_refused(tmp_path, part):
    train(Automatic(), tmp_path, 1, compression=TopK(0.2))
    path = tmp_path / "epoch=0.ckpt"
    checkpoint = torch.load(path, weights_only=True)
    state = checkpoint["fedavg"]["compression"]
    if part == "errors":
        state["clients"][0]["errors"]["net.0.weight"] = torch.zeros(2, 2)
    else:
        state["clients"] = {0: 3}
    torch.save(checkpoint, path)
    with pytest.raises(MisconfigurationException, match=r"not sent of net\.0\.weight|damaged: compression"):
        train(Automatic(), tmp_path, 2, path, compression=TopK(0.2))


def test_private_means_refuse_what_is_kept_of_clients_and_take_the_rest():
    private = {"aggregator": PrivateMean(1.0, 0.1), "client_weights": "uniform"}
    for compression in (TopK(), ScaledSign(), PowerSGD(error_feedback=False)):
        with pytest.raises(MisconfigurationException, match=f"{type(compression).__name__} keeps more"):
            fit(Two(), make_point(4.0, 3.0), 1, compression=compression, **private)
    strategy = fit(Two(), make_point(4.0, 3.0), 1, compression=QSGD(8), **private)
    assert strategy.metrics["epsilon"] > 0


def test_masked_sums_refuse_it():
    with pytest.raises(MisconfigurationException, match="QSGD"):
        check_compression(QSGD(), Mean(), fixed=True)


def test_a_recipe_names_it_by_its_class_path():
    recipe = """
    strategy:
      class_path: fedgen.federated.FedAvgStrategy
      init_args:
        compression: {class_path: fedgen.federated.compression.TopK, init_args: {share: 0.05}}
    """
    rule = strategy_of(yaml.safe_load(recipe)).compression
    assert isinstance(rule, TopK)
    assert rule.share == 0.05
