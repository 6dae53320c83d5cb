"""FedBuffStrategy against an event loop written plainly, against FedAvg, by hand, over resumes, and what it refuses."""

import copy
import heapq
import re
from functools import partial
from pathlib import Path

import pytest
import torch
from lightning.pytorch.callbacks import Checkpoint, LambdaCallback, ModelCheckpoint
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from fedgen.clients import FederatedDataModule
from fedgen.clients.samplers import AvailabilitySampler, Shifts, SizeSampler
from fedgen.data import Examples
from fedgen.federated import (
    ClientSpeeds,
    Ditto,
    FedAdam,
    FedAvgStrategy,
    FedBuffStrategy,
    FedProx,
    Median,
    PrivateMean,
    QFedAvg,
    Scaffold,
)
from fedgen.federated.compression import TopK
from fedgen.federated.run_files import RoundTime, read_times, write_times
from fedgen.flower.app.recipe import deployable
from fedgen.ranks import Ranks
from fedgen.seeds import numpy_generator, seed_all
from tests.callbacks.modules import Points, evaluation
from tests.federated.modules import (
    Automatic,
    Contiguous,
    Manual,
    Quadratic,
    TwoOptimizers,
    make_data,
    make_quadratics,
    make_trainer,
    same,
    weights,
)
from tests.federated.test_compressed_updates import Two
from tests.federated.test_strategy import make_turn, plain_step
from tests.quick import first_quick

PAGE = Path(__file__).parents[2] / "docs" / "asynchronous.md"
SIZES = (12, 20, 8, 16, 9)
SECONDS = [1.0, 1.3, 4.7, 2.2, 0.9]
EQUAL = ClientSpeeds(1.0, "equal")
pytestmark = pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty")


def local_training(model, data, client, step, interval):
    model = copy.deepcopy(model).train()
    optimizers = model.configure_optimizers()
    optimizers = list(optimizers) if isinstance(optimizers, tuple) else [optimizers]
    seed_all(data.seed, "turn", step, client)
    for index, batch in enumerate(make_turn(data, client, step).batches(interval)):
        plain_step(model, optimizers, batch, index)
    return model


def plain_fedbuff(module, data, steps, interval, concurrency, buffer_size, seconds, power, failing=None):
    """FedBuff as an event queue: a client carries the whole server away with it, and comes back when its time is up."""
    server, now, step, queue, buffer, draws, staleness = copy.deepcopy(module), 0.0, 0, [], [], 0, []
    trained = {name for name, _ in module.named_parameters()}
    while step < steps:
        while queue and queue[0][0] <= now and step < steps:
            _, client, started, carried = heapq.heappop(queue)
            found = local_training(carried, data, client, step, interval).state_dict()
            buffer.append((client, started, found, carried.state_dict()))
            if len(buffer) == buffer_size:
                sent = [one for one in buffer if one[0] != failing]
                server.load_state_dict(stepped(server.state_dict(), sent, step, power, trained))
                staleness.append([step - begun for _, begun, _, _ in buffer])
                buffer, draws, step = [], 0, step + 1
        away = {client for _, client, _, _ in queue} | {client for client, *_ in buffer}
        free = [client for client in range(len(data.clients)) if client not in away]
        places = min(concurrency - len(queue), len(free))
        if 0 < places < len(free):
            path = ("cohort", step, draws) if draws else ("cohort", step)
            free = numpy_generator(data.seed, *path).choice(free, places, replace=False).tolist()
        for client in sorted(free[:places]):
            heapq.heappush(queue, (now + interval * seconds[client], client, step, copy.deepcopy(server)))
        draws += 1
        now = queue[0][0]
    return server, staleness


def stepped(server, buffer, step, power, trained):
    """w + mean of (1 + tau)^-power (y - x) for parameters, the plain mean for other floats, the largest for counts."""
    result = dict(server)
    for name, value in server.items():
        sent = [(found[name], carried[name], step - started) for _, started, found, carried in buffer]
        if not value.is_floating_point():
            result[name] = torch.stack([value, *(y for y, _, _ in sent)]).amax(0)
            continue
        if name in trained:
            sent = [(y if not tau else value + (1 + tau) ** -power * (y - x), x, tau) for y, x, tau in sent]
        mean = sent[0][0]
        for count, (y, _, _) in enumerate(sent[1:], 2):
            mean = torch.lerp(mean, y, 1 / count)
        result[name] = mean
    return result


def fit(module, rounds, data=None, callbacks=(), ckpt_path=None, **options):
    usual = {"buffer_size": 2, "concurrency": 3, "seed": 0, "communication_interval": 3}
    strategy = FedBuffStrategy(**(usual | {"speeds": ClientSpeeds(SECONDS)} | options))
    keeps = any(isinstance(one, Checkpoint) for one in callbacks)
    trainer = make_trainer(strategy, rounds, callbacks=list(callbacks), enable_checkpointing=keeps)
    trainer.fit(module, data or make_data(SIZES), ckpt_path=ckpt_path)
    return strategy


CASES = [(Automatic, 3, 2, 0.5), (Automatic, 5, 3, 0.5), (Automatic, 4, 1, 1.0), (Automatic, 3, 2, 0.0)]
OTHERS = [(Manual, 3, 2, 0.5), (TwoOptimizers, 3, 2, 0.5), (TwoOptimizers, 4, 1, 1.0)]


@pytest.mark.parametrize(
    ("kind", "concurrency", "buffer_size", "power"),
    [*CASES, *(pytest.param(*case, marks=pytest.mark.slow) for case in OTHERS)],
)
def test_equals_a_plain_event_loop_to_the_bit(kind, concurrency, buffer_size, power):
    torch.manual_seed(3)
    module, data = kind(), make_data(SIZES)
    expected, staleness = plain_fedbuff(module, data, 6, 3, concurrency, buffer_size, SECONDS, power)
    strategy = fit(module, 6, data, concurrency=concurrency, buffer_size=buffer_size, staleness_power=power)
    assert max(map(max, staleness)) >= 1  # or it would be FedAvg
    assert [one.largest_staleness for one in strategy.simulated_clock.rounds] == [max(taus) for taus in staleness]
    assert same(weights(module), weights(expected))


@pytest.mark.parametrize("kind", first_quick([Automatic, Manual, TwoOptimizers]))
@pytest.mark.parametrize("cohort", [3, 5])
def test_equal_speeds_with_as_many_under_way_as_in_a_buffer_are_fedavg_to_the_bit(kind, cohort):
    options = {"communication_interval": 3, "seed": 0, "optimizer_state": "keep"}
    options["server_optimizer"] = partial(FedAdam, lr=0.1)
    found = []
    for strategy in (
        FedAvgStrategy(cohort_size=cohort, client_weights="uniform", speeds=EQUAL, **options),
        FedBuffStrategy(buffer_size=cohort, concurrency=cohort, speeds=EQUAL, **options),
    ):
        torch.manual_seed(3)
        module = kind()
        make_trainer(strategy, 3).fit(module, make_data(SIZES))
        found.append((weights(module), strategy.simulated_clock.rounds))
    assert same(found[0][0], found[1][0])
    assert found[0][1] == found[1][1]
    assert [one.seconds for one in found[0][1]] == [3.0, 6.0, 9.0]


def test_a_stale_update_counts_less_by_hand():
    """Client 0 (1 s) has the loss w²/2, client 1 (2.5 s) 3/2 (w - 4)²; rate 0.1, one iteration, a step an update.

    From 1, steps of client 0 at 1 s and 2 s: 0.9, 0.81. At 2.5 s client 1's update arrives, made from 1: -0.1 * 3 *
    (1 - 4) = 0.9, two steps late, so that it counts by 1 / sqrt(3). At 3 s client 0's, made from 0.81: -0.081, one
    step late.
    """
    module = Quadratic()
    options = {"buffer_size": 1, "concurrency": 2, "communication_interval": 1, "speeds": ClientSpeeds([1.0, 2.5])}
    strategy = fit(module, 4, make_quadratics(), **options)
    assert module.w.item() == pytest.approx(0.81 + 0.9 / 3**0.5 - 0.081 / 2**0.5, rel=1e-12)
    assert [one.seconds for one in strategy.simulated_clock.rounds] == [1.0, 2.0, 2.5, 3.0]
    assert [one.staleness for one in strategy.simulated_clock.rounds] == [0.0, 0.0, 2.0, 1.0]


def test_the_server_has_a_learning_rate():
    """Half of the same steps: 1, 0.95, 0.9025, then half of 0.9 / sqrt(3)."""
    module = Quadratic()
    options = {"buffer_size": 1, "concurrency": 2, "communication_interval": 1, "speeds": ClientSpeeds([1.0, 2.5])}
    fit(module, 3, make_quadratics(), server_optimizer=partial(torch.optim.SGD, lr=0.5), **options)
    assert module.w.item() == pytest.approx(0.9025 + 0.45 / 3**0.5, rel=1e-12)


def test_weights_by_examples_weigh_the_updates():
    """Clients of 2 and 6 examples in one buffer, both fresh: w goes to (2 * 0.9 + 6 * 1.9) / 8."""
    module = Quadratic()
    options = {"buffer_size": 2, "concurrency": 2, "communication_interval": 1, "client_weights": "examples"}
    fit(module, 1, make_quadratics(sizes=(2, 6)), speeds=EQUAL, **options)
    assert module.w.item() == pytest.approx((2 * 0.9 + 6 * 1.9) / 8, rel=1e-12)


OPTIONS = {
    "keep": {"optimizer_state": "keep", "server_optimizer": partial(FedAdam, lr=0.1)},
    "personal": {"personal": ["net.4.*"]},
    "compressed": {"compression": TopK(0.3)},
    "rule": {"aggregator": Median(), "client_algorithm": FedProx(0.1)},
    "own models": {"client_algorithm": Ditto(0.1)},
}


def resumed(folder, options, rounds=7, before=4):
    """The weights of a run in one, and of one that goes on from its checkpoint, and their clocks."""
    found = []
    for start in (None, folder / f"epoch={before - 1}.ckpt"):
        module = Automatic()
        keep = ModelCheckpoint(folder, filename="{epoch}", save_top_k=-1)
        strategy = fit(module, rounds, callbacks=[keep], ckpt_path=start, **copy.deepcopy(options))
        found.append((weights(module), strategy.simulated_clock.rounds))
    return found


@pytest.mark.parametrize("name", first_quick(list(OPTIONS)))
def test_resuming_ends_with_the_same_weights_to_the_bit(tmp_path, name):
    whole, again = resumed(tmp_path, OPTIONS[name])
    assert same(whole[0], again[0])
    assert whole[1] == again[1]
    assert max(one.largest_staleness for one in whole[1][4:]) >= 1


class Validated(Automatic):
    """With a validation, after which Lightning saves before the round's end."""

    def validation_step(self, batch, batch_idx):
        self.log("loss", super().training_step(batch, batch_idx))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint that ended before the epoch")
def test_a_checkpoint_of_a_validation_lets_the_rounds_time_pass_once(tmp_path):
    found = []
    for start in (None, tmp_path / "epoch=3.ckpt"):
        keep = ModelCheckpoint(tmp_path, filename="{epoch}", save_top_k=-1, save_on_train_epoch_end=False)
        module = Validated()
        strategy = fit(module, 7, make_data(SIZES, held_out=0.25), callbacks=[keep], ckpt_path=start)
        found.append((weights(module), strategy.simulated_clock.rounds))
    assert torch.load(tmp_path / "epoch=3.ckpt", weights_only=True)["fedavg"]["simulated"]["rounds"][-1][0] == 2
    assert found[0][1] == found[1][1]
    assert same(found[0][0], found[1][0])


def test_a_checkpoint_holds_the_versions_of_clients_under_way_alone(tmp_path):
    keep = ModelCheckpoint(tmp_path, filename="{epoch}", save_top_k=-1)
    strategy = fit(Automatic(), 6, callbacks=[keep])
    state = torch.load(tmp_path / "epoch=5.ckpt", weights_only=True)["fedavg"]
    under_way = strategy.simulated_clock.under_way
    assert state["simulated"]["under_way"] == [tuple(turn) for turn in under_way]
    assert set(state["versions"]["versions"]) == {turn.version for turn in under_way}


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (FedBuffStrategy, FedAvgStrategy, r"holds a simulated clock \(speeds=...\), and here is none"),
        (FedAvgStrategy, FedBuffStrategy, r"lacks a simulated clock"),
        (partial(FedAvgStrategy, speeds=EQUAL), FedBuffStrategy, r"lacks clients under way \(FedBuffStrategy\)"),
        (FedBuffStrategy, partial(FedAvgStrategy, speeds=EQUAL), r"holds clients under way"),
    ],
)
def test_a_checkpoint_of_another_clock_is_refused(tmp_path, before, after, message):
    def train(kind, rounds, ckpt_path=None):
        own = {"buffer_size": 2, "concurrency": 3} if kind is FedBuffStrategy else {}
        keep = ModelCheckpoint(tmp_path, filename="{epoch}", save_top_k=-1)
        trainer = make_trainer(
            kind(communication_interval=1, seed=0, **own), rounds, callbacks=[keep], enable_checkpointing=True
        )
        trainer.fit(Automatic(), make_data(SIZES), ckpt_path=ckpt_path)

    train(before, 1)
    with pytest.raises(MisconfigurationException, match=message):
        train(after, 2, tmp_path / "epoch=0.ckpt")


def test_a_fit_that_goes_on_without_a_checkpoint_starts_the_clock_anew():
    module, data = Automatic(), make_data(SIZES)
    strategy = FedBuffStrategy(2, 3, speeds=ClientSpeeds(SECONDS), seed=0, communication_interval=1)
    trainer = make_trainer(strategy, 3)
    trainer.fit(module, data)
    trainer.fit_loop.max_epochs = 5
    trainer.fit(module, data)
    assert [one.round for one in strategy.simulated_clock.rounds] == [3, 4]
    assert strategy.simulated_clock.rounds[0].largest_staleness == 0


class Fails(Automatic):
    """Client 2's turns raise after two steps."""

    own_turn_state = ("client",)

    def on_turn_start(self, turn):
        self.client = turn.client

    def training_step(self, batch, batch_idx):
        if self.client == 2 and batch_idx == 2:
            raise FloatingPointError("no")
        return super().training_step(batch, batch_idx)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:client 'client 2' is left out")
def test_a_client_that_fails_leaves_its_place_in_the_buffer_empty():
    """The mean is over the others, to the bit, also after a turn that had older weights in the server's place."""
    torch.manual_seed(3)
    module, data = Fails(), make_data(SIZES)
    expected, _ = plain_fedbuff(module, data, 8, 3, 3, 2, SECONDS, 0.5, failing=2)
    strategy = fit(module, 8, data)
    rounds = [entry["round"] for entry in strategy.left_out]
    assert any(strategy.simulated_clock.rounds[round].largest_staleness for round in rounds)
    assert same(weights(module), weights(expected))


class SteppingTeacher(Automatic):
    """The server moves a frozen tensor in each round; turns note the value that they see."""

    own_turn_state = ("seen",)

    def __init__(self):
        super().__init__()
        self.teacher = torch.nn.Parameter(torch.zeros(1), requires_grad=False)
        self.seen = {}

    def on_turn_start(self, turn):
        self.seen[turn.round, turn.client] = float(self.teacher)

    def on_round_end(self, iterations):
        self.teacher.data += 1


def test_a_stale_turn_sees_all_of_the_servers_older_state():
    module = SteppingTeacher()
    strategy = fit(module, 8)
    assert float(module.teacher) == 8
    staleness = {
        round: sum(round - value for (at, _), value in module.seen.items() if at == round) for round in range(8)
    }
    assert [staleness[one.round] / 2 for one in strategy.simulated_clock.rounds] == [
        one.staleness for one in strategy.simulated_clock.rounds
    ]
    assert max(staleness.values()) > 0


def arrivals(**options):
    """Each round of a run of 8 and a turn that arrived in it: a buffer can be asked for until its round is over."""
    found = []

    def note(trainer, module):
        round = trainer.current_epoch
        found.extend((round, turn) for turn in trainer.strategy.simulated_clock.buffer_of(round).arrived)

    fit(Automatic(), 8, callbacks=[LambdaCallback(on_train_epoch_start=note)], **options)
    return found


@pytest.mark.slow
def test_clients_start_while_they_are_available_and_arrive_later():
    """Two shifts of clients: whoever starts in a step is there in it."""
    shifts, speeds = Shifts(period=4, on=2), ClientSpeeds(SECONDS, jitter=0.1)
    found = arrivals(sampler=AvailabilitySampler(shifts), speeds=speeds)
    assert {round for round, _ in found} == set(range(8))
    assert all(shifts(turn.client, turn.version) for _, turn in found)
    assert not all(shifts(turn.client, round) for round, turn in found)  # some have gone by the time they arrive
    others = arrivals(speeds=speeds)
    assert [turn.client for _, turn in found] != [turn.client for _, turn in others]
    assert not all(shifts(turn.client, turn.version) for _, turn in others)  # or the sampler would have nothing to do


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"buffer_size": 6}, "buffer_size=6, but 5 clients train; choose 1 to 5"),
        ({"concurrency": 9}, "concurrency=9, but 5 clients train"),
        ({"aggregator": PrivateMean(1.0, 1.0)}, "PrivateMean counts clients that are drawn uniformly"),
        ({"aggregator": QFedAvg(1.0, lr=0.1)}, "QFedAvg compares clients' losses at the same weights"),
        ({"client_algorithm": Scaffold()}, "client_algorithm=Scaffold adds up"),
        ({"optimizer_state": "average"}, "optimizer_state='average' gives"),
        ({"sampler": SizeSampler()}, "sampler=SizeSampler draws whole cohorts"),
        ({"sampler": AvailabilitySampler(Shifts(2, 1), then=SizeSampler())}, "AvailabilitySampler draws whole cohorts"),
        ({"personal": ["*"]}, "every tensor is personal"),
        ({"speeds": ClientSpeeds([1.0])}, "lists 1 clients, and 5 train"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else None,
)
def test_what_makes_no_sense_is_refused_before_training(options, message):
    module = Automatic()
    before = weights(module)
    with pytest.raises(MisconfigurationException, match=message):
        fit(module, 1, **options)
    assert same(before, weights(module))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"buffer_size": 0}, "buffer_size=0"),
        ({"concurrency": 0}, "concurrency=0"),
        ({"staleness_power": -1.0}, "staleness_power=-1.0"),
        ({"staleness_power": float("nan")}, "staleness_power=nan"),
    ],
    ids=str,
)
def test_settings_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        FedBuffStrategy(**options)


def test_compressed_updates_are_of_the_clients_own_start_by_hand():
    """The points are (4, 3), of client 0 (1 s), and (4, 8), of client 1 (2.5 s); a step goes half of the way there.

    Of two numbers the larger is sent. At 1 s client 0's update is (2, 1.5), of which (2, 0) is sent. At 2 s it is
    (1, 1.5) + (0, 1.5), of which (0, 3) is sent: the server has (2, 3), and client 0 keeps (1, 0). At 2.5 s client 1's
    arrives, made from (0, 0): (2, 4), of which (0, 4) is sent, two steps late, so that it counts by 1 / sqrt(3). As a
    difference to the server's present numbers it would have been (0, 1).
    """
    points = Examples(
        torch.tensor([[4.0, 3.0, 0.0], [4.0, 8.0, 0.0]]), torch.zeros(2).long(), "points/train", ("only",)
    )
    data = FederatedDataModule(points, Contiguous((1, 1)), batch_size=1, seed=0, held_out=0.0)
    module, options = Two(), {"buffer_size": 1, "concurrency": 2, "communication_interval": 1}
    strategy = fit(module, 3, data, compression=TopK(0.5), speeds=ClientSpeeds([1.0, 2.5]), **options)
    assert [one.staleness for one in strategy.simulated_clock.rounds] == [0.0, 0.0, 2.0]
    assert module.w.tolist() == pytest.approx([2, 3 + 4 / 3**0.5], rel=1e-6)
    unsent = strategy.round.memory.unsent
    assert [unsent[client].errors["w"].tolist() for client in (0, 1)] == [[1, 0], [2, 0]]


class OneOfTwo(Ranks):
    """One process of two, as far as is known before anything is exchanged."""

    def __init__(self):
        self.size, self.rank = 2, 0


def test_several_processes_are_refused(monkeypatch):
    monkeypatch.setattr("fedgen.federated.strategy.Ranks", OneOfTwo)
    with pytest.raises(MisconfigurationException, match="num_nodes"):
        fit(Automatic(), 1)


@pytest.mark.parametrize("strategy", [{"class_path": "fedgen.federated.FedBuffStrategy"}, None], ids=str)
def test_recipes_with_simulated_time_are_not_deployed(strategy):
    speeds = {"class_path": "fedgen.federated.FedAvgStrategy", "init_args": {"speeds": {"class_path": "ClientSpeeds"}}}
    data = {"class_path": "fedgen.clients.FederatedDataModule"}
    recipe = {"trainer": {"strategy": strategy or speeds}, "data": data}
    message = "only recipes that train with FedAvgStrategy" if strategy else "speeds simulates how long"
    with pytest.raises(ValueError, match=message):
        deployable(recipe, {"class_path": "fedgen.data.ImageFolder"})


@pytest.mark.parametrize(
    ("strategy", "kept"),
    [
        (FedBuffStrategy(2, 3, speeds=ClientSpeeds(SECONDS), seed=0, communication_interval=2), 5),
        (FedAvgStrategy(2, seed=0, speeds=ClientSpeeds(SECONDS)), 5),
        (FedAvgStrategy(2, seed=0), 0),
    ],
    ids=["fedbuff", "fedavg", "without speeds"],
)
def test_an_evaluation_keeps_the_rounds_seconds(tmp_path, strategy, kept):
    write_times(tmp_path, [RoundTime(7, 1.0, 1, 0.0, 0)])  # of an earlier run in this folder
    trainer = make_trainer(strategy, 5, callbacks=[evaluation(every_n_rounds=2)], default_root_dir=tmp_path)
    trainer.fit(Points(), make_data(SIZES))
    times = read_times(tmp_path)
    assert list(times) == list(range(kept))
    if kept:
        assert list(times.values()) == strategy.simulated_clock.rounds
        assert float(trainer.callback_metrics["simulated_seconds"]) == pytest.approx(times[4].seconds)


@pytest.mark.slow
def test_the_pages_example_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    exec(compile(example, str(PAGE), "exec"), {})
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("after ")]
    assert len(lines) == 3
    assert lines[0].endswith("2 updates, 0.0 steps late")
