"""Optional hooks that modules, networks, data modules, strategies and callbacks may define, with their defaults.

An attribute or method of the name is enough: a class may derive from these, for documentation, and need not.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from fedgen.data.optional_attributes import optional

if TYPE_CHECKING:  # a choice among checkpoints needs these defaults, and no torch
    import torch
    from torch import Tensor


Drawn = Mapping[str, "Tensor"]


@dataclass(frozen=True)
class FunctionalStep:
    """One optimizer step of a local iteration, in two functions, from which a strategy trains many clients at once.

    A module gives the steps of an iteration by `functional_steps(iteration)`, in the order in which its `training_step`
    takes them. `draw` is called for each client by itself, with torch's global generators at the client's place;
    `loss` for many clients at once under `torch.vmap`, where the module's parameters and buffers are a client's.

    Args:
        kind: of the step, such as "critic": steps of one kind differ in nothing but their rate.
        optimizer: its place in `configure_optimizers`.
        draw: what the step draws for a batch, tensors by name, in the order in which `training_step` draws. Whatever
            looks at values (an assignment, a check of labels) belongs here, too.
        loss: the loss of (batch, drawn), a scalar to be differentiated in the optimizer's parameters, and what
            `training_step` notes of the step, scalars by name. It draws nothing, decides nothing by values, and changes
            nothing but buffers.
        rate: the optimizer's learning rate in this step; None for the rate that its groups have.
    """

    kind: str
    optimizer: int
    draw: Callable[[Any], Drawn]
    loss: "Callable[[Any, Drawn], tuple[Tensor, Mapping[str, Tensor]]]"
    rate: float | None = None


def overridden_below(part: object, functional: str, names: Iterable[str]) -> str | None:
    """Return why a functional method cannot stand for others: a class that knows nothing of it overrides one of them.

    Args:
        part: whose methods they are.
        functional: the method that stands for the others, as far as its own class and those above it define them.
        names: of the others; those that the part does not have are passed over.
    """
    classes = type(part).__mro__
    definer = {name: next((k for k in classes if name in vars(k)), object) for name in [functional, *names]}
    for name in names:
        if definer[name] is not definer[functional] and issubclass(definer[name], definer[functional]):
            return f"{definer[name].__name__} overrides {name}, and not {functional}"
    return None


class FederatedModule:
    """A LightningModule under federated averaging.

    Attributes:
        server_optimizers: places, in `configure_optimizers`, of optimizers that step at the server alone.
        server_only: beginnings of names of tensors that clients elsewhere are never sent.
        unexchanged: beginnings of names of tensors that the model looks after itself.
        fingerprints: of frozen networks inside the module, by name, which clients elsewhere must have too.
        generator_trained_by: "clients" or "server".
        optimised_on: embeddings that the training looks at; scores in them prove little.
        on_turn_start: called with the turn before a client trains.
        on_turn_end: called after it with whether the turn counts; what it changes is sent too.
        on_round_end: called with the communication interval once the module holds the server's new weights.
        functional_steps: gives the optimizer steps of a client's iteration, counted from 0 since training began, as
            functions; None where there are none.
        no_functional_steps: why they do not stand for `training_step` as the module is set up; None if they do.
        end_functional_turn: called in a turn that was taken by them, with the sums of what steps noted and their number
            for each kind of step, and the examples of a batch: in place of what `training_step` does beside its steps.
    """

    server_optimizers: Sequence[int] = ()
    server_only: Iterable[str] = ()
    unexchanged: Iterable[str] = ()
    fingerprints: Mapping[str, str] = MappingProxyType({})
    generator_trained_by: str = "clients"
    optimised_on: Sequence[str] = ()
    on_turn_start: Callable[[Any], object] | None = None
    on_turn_end: Callable[[bool], object] | None = None
    on_round_end: Callable[[int], object] | None = None
    functional_steps: "Callable[[int], Sequence[FunctionalStep]] | None" = None
    no_functional_steps: str | None = None
    end_functional_turn: "Callable[[Sequence[tuple[Mapping[str, Tensor], int]], int], object] | None" = None


class GenerativeModel:
    """A model that is evaluated.

    Attributes:
        sample: gives images in [-1, 1], points or texts by their number; None if there is nothing to draw.
        num_classes: of labels 0 to num_classes - 1 that `sample` may be asked for; None for an unconditional model.
        sampling: settings of `sample` beside the weights, plain types; None if there is one way only.
        device: where its batches belong.
    """

    sample: "Callable[..., Tensor] | None" = None
    num_classes: int | None = None
    sampling: Any = None
    device: "torch.device | str" = "cpu"


class ImageNetwork:
    """A network that a model trains: a generator, a critic or a denoiser.

    Attributes:
        image_shape: channels, height and width; None if it does not say.
        num_classes: of the labels that it takes; None for an unconditional network.
        null_label: whether the label `num_classes` stands for "any class".
        body: the part that adapters belong to, such as a UNet of diffusers; None for the network itself.
        save_memory: has activations computed again in the backward pass; None if it cannot.
    """

    image_shape: Sequence[int] | None = None
    num_classes: int | None = None
    null_label: bool = False
    body: "torch.nn.Module | None" = None
    save_memory: Callable[[], object] | None = None


class ModulePart:
    """A part of a module: a network, a loss, a moving average, a queue.

    Attributes:
        exchanged: True as other tensors are, False if the part looks after its own, "personal" if clients keep them.
        shares_images: whether it looks at clients' images elsewhere than in their own turns.
        settings: its constructor's arguments as plain types, from which a checkpoint makes it again, or None.
    """

    exchanged: bool | str = True
    shares_images: bool = False
    settings: Any = None


class FederatedData:
    """A data module whose batches are clients' turns.

    Attributes:
        clients: who they are, each with `name` and the positions `train`; None if it cannot say.
        image_shape: channels, height and width; None for what is no image, or not known.
        batch_size: of the clients; None if it is not known.
        label_counts: gives the labels of all clients elsewhere, int64 [classes].
        is_one_client: whether this process is one client of a deployment.
        give_references: gives a loss what it needs to know of clients elsewhere.
        take_metrics: gives what clients elsewhere logged since the last call.
        left_out: clients elsewhere that did not answer.
    """

    clients: Sequence[Any] | None = None
    image_shape: tuple[int, ...] | None = None
    batch_size: int | None = None
    label_counts: "Callable[[], Tensor] | None" = None
    is_one_client: bool = False
    give_references: Callable[[Any, Any], object] | None = None
    take_metrics: Callable[[], Mapping[str, float]] = dict
    left_out: Sequence[Mapping[str, Any]] = ()


class TurnTakingStrategy:
    """A strategy that trains clients in turns; Lightning's own have none of this.

    Attributes:
        calls_round_end: whether it calls modules' `on_turn_start`, `on_turn_end` and `on_round_end`.
        client_iteration: of the client that trains, since training began; None elsewhere.
        client_lr_factor: of the round's schedule on clients' learning rates.
        communication_interval: local iterations a turn; None elsewhere.
        personal: shell patterns of tensors that stay with clients.
        in_round: whether the model is not the server's.
        local_only: whether nothing is exchanged.
        report: who was left out or remarked on.
    """

    calls_round_end: bool = False
    client_iteration: int | None = None
    client_lr_factor: float = 1.0
    communication_interval: int | None = None
    personal: Sequence[str] = ()
    in_round: bool = False
    local_only: bool = False
    report: Sequence[Mapping[str, Any]] = ()


class ScoringCallback:
    """A callback that scores the server's model at some rounds, as `FederatedEvaluation` does.

    Attributes:
        evaluated_round: the last one that was scored; None if none was.
        evaluator: has `column_names()`, of the scores that it logs; None before training.
        headline: the newest score in words, for the progress bar; "" for none.
    """

    evaluated_round: int | None = None
    evaluator: Any = None
    headline: str = ""


class PrecisionPlugin:
    """Lightning's plugin for the precision of training; those of float16 scale gradients, all others do not.

    Attributes:
        scaler: torch's `GradScaler`; None without.
    """

    scaler: Any = None


def data_module_of(trainer: object) -> Any:
    """Return a trainer's data module; None if it was given loaders."""
    return getattr(trainer, "datamodule", None)  # which Lightning sets where there is one


def scaler_of(trainer: Any) -> Any:
    """Return the gradient scaler of a trainer that trains in float16; None for any other."""
    return optional(trainer.precision_plugin, PrecisionPlugin, "scaler")
