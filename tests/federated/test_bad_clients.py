"""A client that runs out of memory or sends what it must not: the round goes on as if it had not been asked."""

import copy
import gc
import logging
import signal
import sys
import weakref
from functools import cache
from typing import ClassVar

import pytest
import torch
from lightning.pytorch.utilities.exceptions import SIGTERMException
from torch import nn

from fedgen.federated import FedAdam, FedAvgStrategy, Scaffold
from fedgen.federated.left_out import LEFT_OUT_FILE, read_left_out
from fedgen.federated.round import exits_fail
from tests.callbacks.modules import Points, fit
from tests.federated.modules import Automatic, Manual, TwoOptimizers, make_data, make_trainer, same, weights
from tests.quick import first_quick

BAD, ROUND = 1, 1  # the client and the round that fail
INTERVAL = 3


def raise_cuda(module):
    raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


def raise_python(module):
    bytearray(1 << 62)


def raise_cpu(module):
    torch.empty(1 << 55)  # no machine has it: the allocator's own error


IN_A_STEP = {
    "cuda": (raise_cuda, "OutOfMemoryError: CUDA out of memory"),
    "python": (raise_python, "MemoryError"),
    "cpu": (raise_cpu, "RuntimeError: .*DefaultCPUAllocator"),
    "exit": (
        lambda module: sys.exit("somebody's script ends here"),
        "RuntimeError: SystemExit: somebody's",
    ),
}


def first(module):
    """The first layer that trains."""
    return next(part for part in module.modules() if isinstance(part, nn.Linear))


def behind(make):
    def change(module):
        first(module).weight.data = make(first(module).weight.data)

    return change


def replace(module):
    first(module).bias = nn.Parameter(torch.zeros(9))


def delete(module):
    del first(module).bias


def remove(module):
    """A whole part of the module, as a client that adapts its architecture might."""
    name, _ = next(module.named_children())
    delattr(module, name)


def remove_within(module):
    """A layer of a Sequential, which counts those behind it anew; of another module a layer itself."""
    name, part = next(module.named_children())
    if isinstance(part, nn.Sequential):
        del part[0]
    else:
        delattr(module, name)


def poison(module):
    first(module).weight.data[0, 0] = float("nan")


SENT = {
    "nan": (poison, r"FloatingPointError: (net\.0|a)\.weight is not finite after 3 local iterations"),
    "shape": (behind(lambda t: t[:2]), r"ValueError: (net\.0|a)\.weight has shape \[2, 3\] instead of \[[48], 3\]"),
    "dtype": (behind(lambda t: t.double()), r"(net\.0|a)\.weight has dtype torch\.float64 instead of torch\.float32"),
    "replaced": (replace, r"(net\.0|a)\.bias has shape \[9\] instead of \[[48]\]"),
    "gone": (delete, r"(net\.0|a)\.bias is gone"),
    "a part gone": (remove, r"(net\.0|a)\.bias is gone"),
    "a layer gone": (remove_within, r"(net\.1|a)\.bias is gone"),
}


def faulty(kind, fault, when):
    """A module of a kind that does something in the bad client's turn: in its second step, or when the turn ends."""

    class Faulty(kind):
        def on_turn_start(self, turn):
            self.is_bad, self.steps = (turn.client, turn.round) == (BAD, ROUND), 0

        def training_step(self, batch, batch_idx):
            self.steps += 1
            if self.is_bad and when == "step" and self.steps == 2:
                fault(self)
            loss = super().training_step(batch, batch_idx)
            if self.is_bad and when == "last step" and self.steps == INTERVAL:
                fault(self)
            return loss

        def on_turn_end(self, completed):
            if self.is_bad and when == "turn end" and completed:
                fault(self)

    torch.manual_seed(3)
    return Faulty()


class Without(FedAvgStrategy):
    """Does not ask the bad client in the bad round."""

    def sample_cohort(self, num_clients, round):
        return [client for client in super().sample_cohort(num_clients, round) if (round, client) != (ROUND, BAD)]


def run(strategy, module, rounds=3):
    trainer = make_trainer(strategy, rounds)
    trainer.fit(module, make_data())
    return trainer


def kept(strategy):
    """What a checkpoint would hold of the clients."""
    memory, local = strategy.round.memory.state_dict(), strategy.round.local.state_dict()
    return {"iterations": memory["iterations"], "personal": memory["personal"], "local": local["clients"]}


def equal(a, b):
    """Nested containers of tensors and numbers, to the bit."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(equal, a, b))
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


OPTIONS = {
    "averaged states": {"optimizer_state": "average"},
    "kept states": {"optimizer_state": "keep"},
    "personal": {"personal": ["b.*"]},
    "local": {"personal": ["*"], "optimizer_state": "keep"},
    "scaffold": {"client_algorithm": Scaffold(), "client_weights": "uniform"},
    "server": {"server_optimizer": lambda p: FedAdam(p, lr=0.1)},
}


@cache
def not_asked(kind, options):
    """What the run holds in the end in which the client was not asked: its weights, and what it keeps of clients."""
    module, strategy = (
        faulty(kind, lambda module: None, ""),
        Without(INTERVAL, seed=0, **copy.deepcopy(OPTIONS[options])),
    )
    run(strategy, module)
    return copy.deepcopy((weights(module), kept(strategy)))


def assert_left_out(fault, said, when, kind, options):
    """The run with the fault, and the one in which the client was not asked, end alike to the bit."""
    expected, expected_kept = not_asked(kind, options)
    module = faulty(kind, fault, when)
    own, shapes = list(module.parameters()), [p.shape for p in module.parameters()]
    strategy = FedAvgStrategy(INTERVAL, seed=0, **copy.deepcopy(OPTIONS[options]))
    with pytest.warns(UserWarning, match=f"client 'client 1' is left out of round 1: .*{said}") as caught:
        run(strategy, module)
    assert sum("left out" in str(warning.message) for warning in caught) == 1
    assert same(weights(module), expected)
    assert equal(kept(strategy), expected_kept)
    assert all(new is old for new, old in zip(module.parameters(), own, strict=True))
    assert [p.shape for p in module.parameters()] == shapes
    assert all(p.grad is None for p in module.parameters())


@pytest.mark.parametrize("kind", [Automatic, Manual])
@pytest.mark.parametrize("name", IN_A_STEP)
def test_out_of_memory_or_an_exit_in_a_step_loses_that_client_alone(name, kind):
    assert_left_out(*IN_A_STEP[name], "step", kind, "averaged states")


@pytest.mark.parametrize("when", first_quick(["last step", "turn end"]))
@pytest.mark.parametrize("name", SENT)
def test_what_a_client_must_not_send_is_refused(name, when):
    # automatic optimisation would use the tensor in its backward pass after the last `training_step`
    assert_left_out(*SENT[name], when, Manual, "kept states")


@pytest.mark.parametrize("name", first_quick(SENT, of=4))
@pytest.mark.parametrize("options", ["personal", "local", "scaffold", "server"])
def test_it_is_refused_whatever_the_strategy_keeps(name, options):
    assert_left_out(*SENT[name], "turn end", TwoOptimizers, options)


def watched(kind, where):
    """A module that remembers, weakly, what the bad client's step made, and what is left of it at the next turn."""

    class Watched(kind):
        made: ClassVar[list] = []
        alive: ClassVar[list] = []

        def on_turn_start(self, turn):
            self.is_bad = (turn.client, turn.round) == (BAD, ROUND)
            self.alive.extend(made() for made in self.made)
            self.made.clear()

        def training_step(self, batch, batch_idx):
            if not self.is_bad:
                return super().training_step(batch, batch_idx)
            hidden = self.net[0](batch[0])
            loss = hidden.square().mean()
            self.made.extend(weakref.ref(tensor) for tensor in (batch[0], hidden, loss))
            if where == "forward":
                raise_cuda(self)
            hidden.register_hook(raise_cuda)
            if kind is Manual:
                self.manual_backward(loss)
            return loss

    torch.manual_seed(3)
    return Watched("SGD")


@pytest.mark.parametrize("where", ["forward", "backward"])
@pytest.mark.parametrize("kind", [Automatic, Manual])
def test_what_the_failed_step_made_is_freed_before_the_next_client(kind, where):
    """Without waiting for the garbage collector: on a GPU the next client would run out of memory too."""
    module = watched(kind, where)
    gc.disable()
    try:
        with pytest.warns(UserWarning, match="OutOfMemoryError"):
            run(FedAvgStrategy(INTERVAL, seed=0), module)
    finally:
        gc.enable()
    assert len(module.alive) == 3
    assert all(tensor is None for tensor in module.alive)


class Averaging(Automatic):
    """Assigns a buffer anew in each step, as many modules do, and another at each round's end."""

    def __init__(self):
        super().__init__("SGD")
        self.register_buffer("steps", torch.zeros(()))
        self.register_buffer("rounds", torch.zeros(()))

    def training_step(self, batch, batch_idx):
        self.steps = self.steps + 1
        return super().training_step(batch, batch_idx)

    def on_round_end(self, iterations):
        self.rounds = self.rounds + 1


def test_buffers_that_are_assigned_anew_travel_like_others():
    """Three iterations a round from the server's value, whoever trained before; without that 3, 6, 9 would add up."""
    module = Averaging()
    trainer = run(FedAvgStrategy(3, seed=0), module, 2)
    assert trainer.strategy.left_out == []
    assert float(module.steps) == 6
    assert float(module.rounds) == 2
    assert module.steps is trainer.strategy.exchange.shared["steps"]


class Growing(Automatic):
    """Gets a layer at the end of the first round."""

    def __init__(self):
        super().__init__("SGD")
        self.register_buffer("seen", torch.zeros(1))

    def on_round_end(self, iterations):
        self.seen = torch.zeros(len(self.seen) + 1)


def test_the_server_may_change_the_forms():
    module = Growing()
    trainer = run(FedAvgStrategy(2, seed=0), module, 3)
    assert trainer.strategy.left_out == []
    assert len(module.seen) == 4


class Failing(Points):
    """Client 1 fails from round 1 on, client 2 in round 3 too, each time in other words."""

    def on_turn_start(self, turn):
        self.fails = turn.round > 0 and (turn.client == 1 or (turn.client, turn.round) == (2, 3))

    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) * (float("nan") if self.fails else 1.0)


pytestmark = pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty")
LINES = [
    "left out: 2 clients, 4 turns",
    "  'client 1', rounds 1-3: FloatingPointError: net.0.weight is not finite after 2 local iterations",
    "  'client 2', round 3: FloatingPointError: net.0.weight is not finite after 2 local iterations",
]


@pytest.fixture
def told(caplog):
    """What the run says at its end of clients left out."""
    caplog.set_level(logging.INFO)
    return lambda: [
        r.getMessage() for r in caplog.records if "left out:" in r.getMessage() or "  'cl" in r.getMessage()
    ]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:client .* is left out")
def test_the_run_ends_with_who_was_left_out_when_after_a_resume_too(tmp_path, told, caplog):
    fit(tmp_path, 2, module=Failing())
    assert told() == ["left out: 1 client, 1 turn", LINES[1].replace("rounds 1-3", "round 1")]
    caplog.clear()
    trainer = fit(tmp_path, 4, module=Failing(), ckpt_path="last")
    assert told() == LINES
    assert [(e["round"], e["client"]) for e in trainer.strategy.left_out] == [(1, 1), (2, 1), (3, 1), (3, 2)]
    assert read_left_out(tmp_path) == trainer.strategy.left_out


@pytest.mark.filterwarnings("ignore:client .* is left out")
def test_a_new_run_in_the_folder_does_not_keep_an_earlier_ones_list(tmp_path):
    fit(tmp_path / "a", 2, module=Failing())
    assert (tmp_path / "a" / LEFT_OUT_FILE).exists()
    for name in ("round=00001.ckpt", "last.ckpt", "scores.jsonl"):
        (tmp_path / "a" / name).unlink()
    trainer = fit(tmp_path / "a", 1)
    assert trainer.strategy.left_out == []
    assert not (tmp_path / "a" / LEFT_OUT_FILE).exists()


class Interrupted(Failing):
    def on_train_epoch_start(self):
        if self.current_epoch == 2:
            raise KeyboardInterrupt


@pytest.mark.filterwarnings("ignore:client .* is left out")
def test_an_interrupted_run_says_it_too(tmp_path, told):
    with pytest.raises(SystemExit):
        fit(tmp_path, 4, module=Interrupted())
    assert told() == ["left out: 1 client, 1 turn", LINES[1].replace("rounds 1-3", "round 1")]


@pytest.mark.parametrize("cause", ["SIGTERM", "Ctrl-C", "a handler"])
def test_an_exit_by_a_signal_ends_the_run(cause):
    @exits_fail()
    def end():
        if cause == "SIGTERM":
            raise SIGTERMException
        if cause == "a handler":
            signal.raise_signal(signal.SIGUSR1)
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            sys.exit(1)  # as Lightning does

    before = signal.signal(signal.SIGUSR1, lambda *_: sys.exit(3))  # as scripts for clusters do
    try:
        with pytest.raises(SystemExit):
            end()
    finally:
        signal.signal(signal.SIGUSR1, before)


class Lost(Points):
    def training_step(self, batch, batch_idx):
        raise ValueError(f"no such luck with {batch[0][0, 0]:.6f}" if self.varied else "no such luck")


@pytest.mark.filterwarnings("ignore:client .* is left out")
@pytest.mark.parametrize("varied", [True, False])
def test_a_run_that_lost_a_whole_round_names_its_clients_unless_all_met_one_error(tmp_path, told, varied):
    module = Lost()
    module.varied = varied
    with pytest.raises(RuntimeError if varied else ValueError, match="left"):
        fit(tmp_path, 1, module=module)
    assert told()[:1] == (["left out: 3 clients, 3 turns"] if varied else [])
    assert len(told()) == (4 if varied else 0)


def test_a_run_that_left_out_nobody_says_nothing_and_keeps_no_file(tmp_path, told):
    fit(tmp_path, 1)
    assert told() == []
    assert not (tmp_path / LEFT_OUT_FILE).exists()
