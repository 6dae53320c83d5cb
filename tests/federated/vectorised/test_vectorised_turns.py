"""Turns taken at once beside the same turns one by one."""

import copy
import logging
import re
from pathlib import Path

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn

from fedgen import Digits
from fedgen.clients import FederatedDataModule
from fedgen.clients.partitions import IID
from fedgen.federated import ExponentialDecay, FedAdam, FedAvgStrategy, Median, QFedAvg, VectorisedTurns
from fedgen.federated.compression import QSGD
from fedgen.federated.vectorised import vectorised_turns
from fedgen.federated.vectorised.stacked_clients import StackedClients
from fedgen.models import DDPM, EDM, GAN, WGANGP, FlowMatching
from fedgen.models.adversarial import Hinge, NonSaturating
from fedgen.models.networks import SmallCritic, SmallGenerator, UNet
from fedgen.models.optional_hooks import FunctionalStep
from tests.federated.modules import Quadratic, make_data, make_quadratics, make_trainer, same, strategy_of, weights
from tests.federated.vectorised.modules import ALWAYS, Alone, Field, Pair, at_once, both, farthest, fit
from tests.quick import first_quick

PAGE = Path(__file__).parents[3] / "docs" / "vectorised-turns.md"
EXACT = 1e-10  # in float64, where sums are added in another order
pytestmark = pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty")


def seeded(make):
    torch.manual_seed(3)
    return make()


@pytest.fixture(scope="module")
def one_by_one():
    """Three rounds of one optimizer."""
    return fit(seeded(Alone), None)


# ---- the strategy's settings, around small modules ----

SETTINGS = {
    "keep": {"optimizer_state": "keep", "cohort_size": 4},
    "reset": {},
    "average": {"optimizer_state": "average", "server_optimizer": lambda p: FedAdam(p, lr=0.1)},
    "personal": {"personal": ["net.layers.0.*", "*running*"], "cohort_size": 3},
    "local": {"personal": ["*"]},
    "rules": {"rules": {"*running_mean": "server"}, "aggregator": Median()},
    "schedules": {"client_schedule": ExponentialDecay(0.5, 1), "server_schedule": ExponentialDecay(0.9, 1)},
    "compression": {"compression": QSGD(bits=8)},
    "uniform": {"client_weights": "uniform", "batch_idx": "client"},
}


# optimizers' states are handled by the number of optimizers, the other settings apart from it
CASES = [
    ("keep", Pair),
    ("keep", Alone),
    ("reset", Alone),
    ("average", Pair),
    ("personal", Alone),
    ("average", Alone),
    ("local", Pair),
    ("rules", Alone),
    ("schedules", Pair),
    ("compression", Pair),
    ("uniform", Pair),
]


@pytest.mark.parametrize(("name", "kind"), first_quick(CASES, of=4, several=True))
def test_turns_at_once_are_those_one_by_one(name, kind):
    """Weights, clients' optimizer states and tensors, counters, logs and counts of steps."""
    one, many = both(seeded(kind), **copy.deepcopy(SETTINGS[name]))
    assert at_once(many).reason is None
    assert at_once(many).counts[1] > 0
    assert farthest(one, many) < (EXACT if name != "compression" else 1e-4)  # which rounds at random thresholds


@pytest.mark.parametrize(
    ("optimizer", "options"),
    first_quick(
        [
            ("SGD", {}),
            ("SGD", {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
            ("AdamW", {"weight_decay": 0.1, "amsgrad": True}),
            ("Adam", {"fused": True}),
        ],
        several=True,
    ),
)
def test_optimizers_step_and_are_kept_as_pytorch_steps_them(optimizer, options):
    one, many = both(seeded(lambda: Alone(optimizer, **options)), optimizer_state="keep", cohort_size=4)
    assert at_once(many).counts == [0, 12]
    assert farthest(one, many) < EXACT


def test_gradients_are_clipped_for_each_client_by_itself():
    free = fit(seeded(Alone), ALWAYS, rounds=1).lightning_module.net.layers[0].weight
    for algorithm in ("norm", "value"):
        settings = {"gradient_clip_val": 0.1, "gradient_clip_algorithm": algorithm}
        one, many = both(seeded(Alone), trainer=settings, rounds=1)
        assert farthest(one, many) < EXACT
        assert (one.lightning_module.net.layers[0].weight - free).abs().max() > 1e-4


def test_in_single_precision_they_agree_to_its_rounding():
    one, many = both(seeded(Pair), trainer={"precision": "32-true"}, optimizer_state="keep", rounds=2)
    assert 0 < farthest(one, many) < 1e-4


def test_a_loss_at_the_server_s_weights_is_told_to_aggregators_that_ask():
    one, many = both(seeded(Alone), aggregator=QFedAvg(q=2.0, lr=0.05))
    assert farthest(one, many) < EXACT


class Places(Alone):
    """Notes where each turn leaves torch's global generator."""

    noted: list = []  # noqa: RUF012 - of the class: a list of the module's own would be its state

    def on_turn_end(self, completed):
        super().on_turn_end(completed)
        self.noted.append(torch.get_rng_state())


def test_each_client_draws_what_it_draws_by_itself():
    """The generator is left at the same place of its stream, and a step without learning has the same loss."""
    Places.noted.clear()
    one, many = both(seeded(lambda: Places("SGD", lr=1e-30)), rounds=2)
    half = len(Places.noted) // 2
    assert half == 10
    assert all(map(torch.equal, Places.noted[:half], Places.noted[half:]))
    assert farthest(one, many) < EXACT


@pytest.mark.slow
def test_training_goes_on_from_a_checkpoint_to_the_bit(tmp_path):
    def train(module, folder, rounds, ckpt_path=None):
        strategy = FedAvgStrategy(
            4, seed=0, optimizer_state="keep", cohort_size=4, personal=["other.layers.0.*"], vectorised_turns=ALWAYS
        )
        callbacks = [ModelCheckpoint(folder, filename="{epoch}", save_top_k=-1)]
        trainer = make_trainer(strategy, rounds, enable_checkpointing=True, callbacks=callbacks)
        trainer.fit(module, make_data((12, 20, 8, 8, 9)), ckpt_path=ckpt_path)
        assert at_once(trainer).counts[1] > 0
        return module

    whole = train(seeded(Pair), tmp_path / "whole", 4)
    train(seeded(Pair), tmp_path / "part", 2)
    resumed = train(seeded(Pair), tmp_path / "part", 4, tmp_path / "part" / "epoch=1.ckpt")
    assert same(weights(whole), weights(resumed))


# ---- clients that are left out, and unlike ones ----


@pytest.mark.slow
def test_a_client_that_breaks_is_left_out_and_the_others_stay_as_they_are():
    data = make_data((12, 20, 8, 8, 9))
    data.examples.inputs[data.clients[2].train] = float("inf")
    found = []
    for settings in (None, ALWAYS):
        with pytest.warns(UserWarning, match="left"):
            found.append(fit(seeded(Pair), settings, data=copy.deepcopy(data)))
    one, many = found
    assert [entry["client"] for entry in many.strategy.left_out] == [2, 2, 2]
    assert at_once(many).counts == [2, 13]  # later its own count of iterations stays behind: nobody goes with it
    assert farthest(one, many) < EXACT


class Picky(Alone):
    """Raises for labels above 1."""

    def draw(self, batch):
        if int(batch[1].max()) > 1:
            raise ValueError("labels are 0 or 1")
        return super().draw(batch)


def test_turns_that_fail_together_are_taken_one_by_one_where_the_client_at_fault_is_left_out(caplog):
    data = make_data((12, 20, 8, 8, 9))
    data.examples.labels[data.clients[4].train] = 2
    settings = VectorisedTurns(2, always=True)  # the last client's turn comes in the third pair, a single one
    with pytest.warns(UserWarning, match="labels"), caplog.at_level(logging.INFO, "lightning.pytorch"):
        found = fit(seeded(Picky), settings, data=data, rounds=2, client_weights="uniform")
    assert {entry["client"] for entry in found.strategy.left_out} == {4}
    data = make_data((8, 8, 9, 9, 9))
    data.examples.labels[data.clients[3].train] = 2
    with pytest.warns(UserWarning, match="labels"), caplog.at_level(logging.INFO, "lightning.pytorch"):
        found = fit(seeded(Picky), settings, data=data, rounds=2)
    assert {entry["client"] for entry in found.strategy.left_out} == {3}
    assert at_once(found).counts == [6, 4]  # in both rounds clients 2 and 3 fail together, 4 has nobody to go with
    assert "2 of the round's turns are taken one by one: labels are 0 or 1" in caplog.text


@pytest.mark.slow
def test_clients_whose_batches_differ_in_size_train_with_those_of_their_size():
    """Batches of 4, but for two clients of 3 and one of 2 examples, which has nobody to go with."""
    data = make_data((12, 3, 8, 3, 2, 5))
    one, many = both(seeded(Pair), data=data, rounds=2)
    assert at_once(many).counts == [2, 10]
    assert farthest(one, many) < EXACT


@pytest.mark.slow
def test_clients_at_different_iterations_train_with_those_whose_steps_are_theirs():
    """The second optimizer steps after every third iteration of a client's own, and turns have four."""
    one, many = both(seeded(Pair), rounds=6, cohort_size=3)
    assert 0 < at_once(many).counts[0] < 18
    assert farthest(one, many) < EXACT


@pytest.mark.slow
def test_an_optimizer_that_does_not_step_in_a_turn_keeps_its_state():
    """With two iterations a turn the second optimizer steps in two of a client's turns out of three."""
    one, many = both(seeded(Pair), rounds=4, communication_interval=2, optimizer_state="keep")
    assert at_once(many).counts == [0, 20]
    assert farthest(one, many) < EXACT


# ---- how many ----


def test_fewer_are_taken_at_once_where_memory_is_given(monkeypatch):
    sizes = []
    monkeypatch.setattr(StackedClients, "train", counting(StackedClients.train, sizes))
    fit(seeded(Alone), VectorisedTurns(3, always=True), rounds=1)
    trial = at_once(fit(seeded(Alone), ALWAYS, rounds=1))._trial
    held = trial.num_bytes + vectorised_turns.STATES * trial.stepped_bytes
    fit(seeded(Alone), VectorisedTurns(always=True, memory=4.5 * held), rounds=1)  # the fifth has nobody to go with
    assert sizes == [3, 2, 5, 4]


def counting(train, sizes):
    def counted(self, iterations):
        sizes.append(len(self.turns))
        return train(self, iterations)

    return counted


def test_with_memory_for_one_they_are_taken_one_by_one():
    found = at_once(fit(seeded(Alone), VectorisedTurns(always=True, memory=100), rounds=1))
    assert found.reason == "memory=100 bytes hold fewer than two clients"
    assert found.counts == [5, 0]


def test_out_of_memory_halves_their_number(one_by_one, monkeypatch, caplog):
    train, sizes = StackedClients.train, []

    def bounded(self, iterations):
        sizes.append(len(self.turns))
        if len(self.turns) > 2:
            raise torch.OutOfMemoryError("all used")
        train(self, iterations)

    monkeypatch.setattr(StackedClients, "train", bounded)
    with caplog.at_level(logging.INFO, "lightning.pytorch"):
        many = fit(seeded(Alone), VectorisedTurns(5, always=True))
    assert sizes[:3] == [5, 2, 2]
    assert "out of memory; at most 2 clients' turns" in caplog.text
    assert farthest(one_by_one, many) < EXACT


@pytest.mark.parametrize(("options", "said"), [({"clients": 1}, "at least two"), ({"memory": 0.0}, "give bytes")])
def test_settings_out_of_range_are_refused(options, said):
    with pytest.raises(ValueError, match=said):
        VectorisedTurns(**options)


@pytest.mark.parametrize("init_args", [{}, {"clients": 8, "memory": 2e9}])
def test_a_recipe_names_them(init_args):
    name = "fedgen.federated.VectorisedTurns"
    settings = {"class_path": name, "init_args": init_args} if init_args else name
    strategy = {"class_path": "fedgen.FedAvgStrategy", "init_args": {"vectorised_turns": settings}}
    found = strategy_of({"strategy": strategy, "accelerator": "cpu"})
    assert found.vectorised_turns == VectorisedTurns(**init_args)


# ---- whether it wins ----


@pytest.mark.parametrize(("costs", "counts", "said"), [
    ((1.0, 0.5), [2, 13], "3 clients at once take 0.5 of the time"),
    ((1.0, 2.0), [12, 3], "are taken one by one: 3 clients at once take 2 of the time"),
])  # fmt: skip
def test_the_faster_way_is_kept_once_both_were_timed(one_by_one, monkeypatch, caplog, costs, counts, said):
    """A clock by which a client's iteration takes so long, and nothing else takes time."""
    now = [0.0]

    def spend(step, seconds):
        def run(self, *args):
            now[0] += seconds(self)
            return step(self, *args)

        return run

    monkeypatch.setattr(Alone, "training_step", spend(Alone.training_step, lambda _: costs[0]))
    monkeypatch.setattr(
        StackedClients, "_iterate", spend(StackedClients._iterate, lambda self: costs[1] * len(self.turns))
    )
    monkeypatch.setattr(vectorised_turns.time, "perf_counter", lambda: now[0])
    with caplog.at_level(logging.INFO, "lightning.pytorch"):
        many = fit(seeded(Alone), VectorisedTurns())
    assert at_once(many).counts == counts
    assert said in caplog.text
    assert farthest(one_by_one, many) < EXACT


# ---- the kit's models ----

MODELS = {
    "wgan-gp": lambda: WGANGP(SmallGenerator(width=8), SmallCritic(width=8), n_critic=3, ema_decay=0.9),
    "hinge": lambda: GAN(SmallGenerator(width=8), SmallCritic(width=8), Hinge(), lr_decay_rounds=4),
    "non-saturating": lambda: GAN(SmallGenerator(width=8), SmallCritic(width=8), NonSaturating(), critic_lr=1e-3),
    "ddpm": lambda: DDPM(Field(10), warmup=7, flips=True, prediction="v"),
    "flow": lambda: FlowMatching(Field(10), coupling="optimal-transport", dequantise=4, ema_decay=0.9),
    "flow-points": lambda: FlowMatching(Field(), times="logit-normal", sigma_min=0.1),
    "edm": lambda: EDM(Field(), warmup=7),
    "unet": lambda: DDPM(UNet(8, 1, [4, 8], 1, [4], num_classes=10)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_models_of_the_kit_train_as_one_by_one(name):
    """Weights with their moving averages, clients' Adams, logged losses, learning rates."""
    data = FederatedDataModule(Digits(), IID(100), batch_size=16, seed=0, held_out=0.0)
    one, many = both(seeded(MODELS[name]), data=data, cohort_size=5, optimizer_state="keep", rounds=2)
    assert at_once(many).reason is None
    assert at_once(many).counts[1] >= 7
    assert farthest(one, many) < EXACT


def test_a_group_s_rate_is_what_the_warm_up_left():
    one, many = both(seeded(lambda: DDPM(Field(), warmup=100)), data=digits(), rounds=2, cohort_size=3)
    rates = [trainer.optimizers[0].param_groups[0]["lr"] for trainer in (one, many)]
    assert rates == pytest.approx([2e-4 * 4 / 100] * 2, rel=1e-12)  # of a client that came for the first time
    assert farthest(one, many) < EXACT


def digits():
    return FederatedDataModule(Digits(), IID(100), batch_size=16, seed=0, held_out=0.0)


def test_the_page_s_module_trains_at_once():
    (code,) = re.findall(r"```python\n(import torch\n.*?)```", PAGE.read_text(), re.DOTALL)
    space = {}
    exec(code, space)
    one, many = both(seeded(space["Denoise"]), data=digits(), cohort_size=4, rounds=2)
    assert at_once(many).counts == [0, 8]
    assert farthest(one, many) < EXACT


class Bare(Quadratic):
    """A module of Lightning's own base, which has nothing to note of its turns."""

    def loss_of(self, batch, drawn):
        return Quadratic.training_step(self, batch, 0), {}

    def training_step(self, batch, batch_idx):
        return self.loss_of(batch, {})[0]

    def functional_steps(self, iteration):
        return [FunctionalStep("step", 0, lambda batch: {}, self.loss_of)]


def test_a_module_needs_nothing_but_its_steps():
    """Clients (1, 0) and (3, 4) by hand: from 1 to 0.9 and to 1 - 0.1 * 3 (1 - 4) = 1.9; their mean is 1.4."""
    many = fit(Bare(), ALWAYS, data=make_quadratics(), rounds=1, communication_interval=1)
    assert at_once(many).counts == [0, 2]
    assert many.lightning_module.w.item() == pytest.approx(1.4, rel=1e-12)


def test_modules_are_left_with_their_own_parameters():
    """A stacked tensor that stays in the module would be trained on by the next turn."""
    module = fit(seeded(Pair), ALWAYS).lightning_module
    assert all(type(p) is nn.Parameter and p.is_leaf and p.requires_grad for p in module.parameters())
    assert all(not b.requires_grad for b in module.buffers())
