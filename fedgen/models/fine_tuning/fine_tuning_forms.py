"""Forms in which a generator is trained towards clients who keep their images, and what each of them sends.

- "exact": generator steps on GAN loss + weight * score; clients are asked about every generated batch
  (`DistributedLoss`). Runs under any strategy for one process, `Trainer(strategy="auto")`, and a batch of the
  trainer's loader, whose content is not used, stands for one iteration.
- "message": likewise, but clients are asked once, when fitting starts (`OneMessageLoss`), with the server's images
  as public ones.
- "local": under `FedAvgStrategy`. In its turn a client takes steps of the generator on its own score (the loss with
  aggregate "own"), with an optimizer of its own; the strategy averages the generators; then the server takes
  iterations of the game on its images. Nothing but the generator travels.
"""

import copy
from collections.abc import Iterable
from typing import Any, Literal

from torch import nn

from fedgen.losses import AdaptiveWeight, DistributedLoss, EmbeddedLoss, FeatureLoss, OneMessageLoss
from fedgen.losses.distributed import Traffic, check_mean_of_clients
from fedgen.models.require import require

Form = Literal["exact", "local", "message"]
FORMS = ("exact", "local", "message")


def bring_into_form(objective: EmbeddedLoss, form: Form) -> None:
    """Put a form's losses into an objective.

    Raises:
        ValueError: for an objective that does not go with the form.
    """
    require(
        not (form == "local" and isinstance(objective.weight, AdaptiveWeight)),
        "AdaptiveWeight follows a critic's loss, and clients' turns have no critic; give the objective a number as"
        " its weight",
    )
    objective.replace_losses(lambda loss: loss_of_form(loss, form))


def loss_of_form(loss: FeatureLoss, form: Form) -> FeatureLoss:
    """Return the loss that a form puts in the place of one.

    Raises:
        ValueError: for a loss that does not go with the form.
    """
    kinds = {"exact": DistributedLoss, "message": OneMessageLoss}
    if isinstance(loss, DistributedLoss | OneMessageLoss):
        require(type(loss) is kinds.get(form), f"form={form!r} does not go with a {type(loss).__name__}")
        return loss
    if form != "local":
        return kinds[form](loss)
    check_mean_of_clients(loss)
    own = copy.deepcopy(loss)
    own.aggregate = "own"
    return own


def check_strategy(form: Form, federated: bool, name: str) -> None:
    """Refuse a strategy under which a form cannot train.

    Args:
        form: see `DistributedFineTuning`.
        federated: whether the strategy trains clients in turns.
        name: its class's.

    Raises:
        ValueError: naming both, and the remedy.
    """
    require(
        federated or form != "local",
        f"form='local' is federated averaging of the generator: use FedAvgStrategy, got {name}",
    )
    require(
        not federated or form == "local",
        f"form={form!r} trains on the server alone: use Trainer(strategy='auto'), got {name}",
    )


class TrafficAccount:
    """The bytes of a training, over all clients, and those since they were last told.

    Args:
        before: that a checkpoint has of the training so far; none by default.
    """

    def __init__(self, before: Traffic | None = None) -> None:
        before = before or Traffic()
        self._in_turns = Traffic(before.down, before.up, before.questions)
        self._told = before

    def add_turn(self, strategy: Any, completed: bool) -> None:
        """Count what was sent for a client's turn.

        Args:
            strategy: a `FedAvgStrategy`.
            completed: whether the client sent anything back.
        """
        self._in_turns.down += strategy.bytes_received
        self._in_turns.up += strategy.bytes_sent if completed else 0

    def total(self, losses: Iterable[nn.Module]) -> Traffic:
        """Return all that was sent, with what losses asked of clients."""
        asked = [loss.traffic for loss in losses if isinstance(loss, DistributedLoss | OneMessageLoss)]
        return Traffic(*(sum(getattr(one, k) for one in [*asked, self._in_turns]) for k in ("down", "up", "questions")))

    def tell(self, total: Traffic) -> tuple[Traffic, bool]:
        """Return what was sent since the last call, and whether this is the first that anything was sent before."""
        before, self._told = self._told, total
        since = Traffic(total.down - before.down, total.up - before.up, total.questions - before.questions)
        return since, not before.down
