"""A client that fails: the module is the server's again before anything else runs, and no hook runs of a step that was
not taken.
"""

from typing import Any

import lightning as L
import pytest
import torch

from fedgen.clients.turn import Turn
from fedgen.federated import FedAvgStrategy
from tests.federated.modules import (
    Automatic,
    Manual,
    Quadratic,
    make_data,
    make_quadratics,
    make_trainer,
    same,
    weights,
)

pytestmark = pytest.mark.filterwarnings("ignore:client .* is left out")


class Retried(FedAvgStrategy):
    """Begins the turn of some clients again, by hand, after it has failed once.

    Args:
        failing: the clients.
    """

    def __init__(self, failing: tuple[int, ...], **settings: Any) -> None:
        super().__init__(3, seed=0, **settings)
        self._failing = failing

    def _drive(self, round: Any, schedules: Any) -> Any:
        driver, failing = super()._drive(round, schedules), self._failing

        class Again:
            begin, close = driver.begin, driver.close

            @staticmethod
            def take(turn: Turn, train: Any) -> Any:
                def fail() -> None:
                    train()
                    raise RuntimeError("no luck")

                if turn.client in failing:
                    driver.take(turn, fail)
                    round.begin_turn(turn)
                return driver.take(turn, train)

        return Again


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["reset", "keep", "average"])
@pytest.mark.parametrize("kind", [Automatic, Manual])
def test_a_client_that_is_retried_by_hand_equals_one_that_never_failed(kind, mode):
    """The first of a round, for whom the module already held the server's tensors, and a later one."""
    found = []
    for failing in ((), (0,), (0, 2)):
        torch.manual_seed(0)
        module, strategy = kind(), Retried(failing, optimizer_state=mode)
        make_trainer(strategy, 3).fit(module, make_data())
        found.append(weights(module))
    assert same(found[0], found[1])
    assert same(found[0], found[2])


def test_the_servers_tensors_are_back_before_the_module_is_asked_anything():
    seen: list[tuple[int, bool, float]] = []

    class Asked(Quadratic):
        def on_turn_start(self, turn: Turn) -> None:
            self.fails = turn.client == 0

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            if self.fails and batch_idx == 1:
                raise RuntimeError("no luck")
            return super().training_step(batch, batch_idx)

        def on_turn_end(self, completed: bool) -> None:
            seen.append((self.current_epoch, completed, self.w.item()))

    module = Asked()
    make_trainer(FedAvgStrategy(2, seed=0), 1).fit(module, make_quadratics())
    # the first client's step has moved w to 0.9; the second's two to 4 - 3 * 0.7^2
    assert seen == [(0, False, 1.0), (0, True, pytest.approx(4 - 3 * 0.7**2))]
    assert module.w.item() == pytest.approx(4 - 3 * 0.7**2)


class Watching(L.Callback):
    """Notes calls around steps."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        self.calls.append("batch start")

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.calls.append(f"batch end {sorted(outputs)}")

    def on_before_zero_grad(self, *_: Any) -> None:
        self.calls.append("zero")

    def on_before_backward(self, trainer: Any, module: Any, loss: torch.Tensor) -> None:
        self.calls.append(f"before backward {bool(loss.isfinite())}")

    def on_after_backward(self, trainer: Any, module: Any) -> None:
        self.calls.append(f"after backward {module.net[0].weight.grad is not None}")

    def on_before_optimizer_step(self, *_: Any) -> None:
        self.calls.append("step")


class ReadsGradients(Automatic):
    """Needs gradients after each backward pass; the second client's batches cannot be read.

    Args:
        calls: takes those of its hooks.
    """

    def __init__(self, calls: list[str]) -> None:
        super().__init__()
        self.note = calls.append  # a list of the module's own would be state

    def on_turn_start(self, turn: Turn) -> None:
        self.client = turn.client

    def on_after_backward(self) -> None:
        self.note(f"after backward {float(self.net[0].weight.grad.norm()) > 0}")

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        self.note("batch start")

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.note(f"batch end {sorted(outputs)}")

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if self.client == 1:
            raise OSError("no such file")
        return super().training_step(batch, batch_idx)


def test_no_hook_runs_of_a_step_that_a_failed_turn_did_not_take():
    """Two clients of three train, an iteration each; callbacks' batch hooks are called once a turn."""
    calls: list[str] = []
    watching = Watching()
    make_trainer(FedAvgStrategy(1, seed=0), 1, callbacks=[watching]).fit(ReadsGradients(calls), make_data())
    step = ["batch start", "after backward True", "batch end ['loss']"]
    assert calls == [*step, "batch start", *step]
    around = ["zero", "before backward True", "after backward True", "step"]
    assert watching.calls == [
        *("batch start", *around, "batch end ['loss']"),
        "batch start",
        *("batch start", *around, "batch end ['loss']"),
    ]
