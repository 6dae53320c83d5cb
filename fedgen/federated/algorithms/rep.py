"""FedRep (Collins et al. 2021, "Exploiting Shared Representations for Personalized Federated Learning", 2102.07078)."""

from collections.abc import Mapping, Sequence

import torch
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from torch import Tensor
from torch.optim import Optimizer

from fedgen.federated.algorithms.algorithm import ClientAlgorithm, parameter_names
from fedgen.federated.client_state.exchange import parameters_of


class FedRep(ClientAlgorithm):
    """The head first, then the body: a turn trains what the client keeps, and after that what travels (Algorithm 1).

    `FedAvgStrategy(personal=["head.*"])` says by patterns of names what the head is: it stays with the client, and its
    other parameters, the body, travel. That alone is FedPer (Arivazhagan et al. 2019), which trains both in each step.
    Here an optimizer's first `head_steps` steps of a turn are the head's, with the body frozen, and its others the
    body's, with the head frozen: to the bit as if `requires_grad` were off. The head goes on from where its
    last turn left it. Where nothing travels at all, training alone, it does nothing.

    What is frozen loses its gradient before the step, so that it neither moves nor decays, and clipping sees the rest
    alone. Moments of optimizers skip such steps too. Layers such as BatchNorm still take their moments from each batch.
    Nothing is kept and nothing more is sent. Of several optimizers each counts its own steps.

    Args:
        head_steps: of each optimizer, at least 1 and fewer than a turn has.

    Raises:
        ValueError: for fewer than one step.
        MisconfigurationException: when fitting starts, if nothing that trains is personal; after a turn in which the
            body took no step.

    Examples:
        >>> import torch
        >>> from fedgen.federated import FedRep
        >>> rule = FedRep(head_steps=1)
        >>> body, head = (torch.nn.Parameter(torch.zeros(1)) for _ in range(2))
        >>> optimizer = torch.optim.SGD([body, head], 1.0)
        >>> rule.start_fit({"body": body}, [optimizer], shares=None)
        >>> rule.start_turn(0, {"body": body}, {"body": torch.zeros(1)})
        >>> for step in range(2):
        ...     body.grad, head.grad = torch.ones(1), torch.ones(1)
        ...     rule.before_step(optimizer)
        ...     print(body.grad, head.grad)
        None tensor([1.])
        tensor([1.]) None
    """

    def __init__(self, head_steps: int) -> None:
        if head_steps < 1:
            raise ValueError(f"head_steps={head_steps}: the head takes one step or more; FedPer, without, has no rule")
        self.head_steps = head_steps
        self._body: dict[int, str] = {}
        self._steps: dict[int, int] = {}  # of the turn, by optimizer

    def start_fit(
        self, model: Mapping[str, Tensor], optimizers: Sequence[Optimizer], shares: Sequence[float] | None
    ) -> None:
        body = parameter_names(model)
        trained = {id(parameter) for optimizer in optimizers for parameter in parameters_of(optimizer)}
        if body and not trained - body.keys():
            raise MisconfigurationException(
                "FedRep trains a head that clients keep and a body that travels, and of what trains nothing stays with"
                " the clients: name the head by FedAvgStrategy(personal=['head.*'])"
            )

    def start_turn(self, client: int, model: Mapping[str, Tensor], server: Mapping[str, Tensor]) -> None:
        self._body, self._steps = parameter_names(model), {}

    @torch.no_grad()
    def before_step(self, optimizer: Optimizer) -> None:
        if not self._body:
            return
        done = self._steps[id(optimizer)] = self._steps.get(id(optimizer), 0) + 1
        trains_head = done <= self.head_steps
        for parameter in parameters_of(optimizer):
            if (id(parameter) in self._body) == trains_head:
                parameter.grad = None

    def end_turn(self, client: int, model: Mapping[str, Tensor], iterations: int) -> None:
        if self._steps and (most := max(self._steps.values())) <= self.head_steps:
            raise MisconfigurationException(
                f"FedRep(head_steps={self.head_steps}): a turn of {iterations} iterations had {most} steps, so that the"
                " body took none and nothing would be learnt together: give head_steps a smaller number, or"
                " communication_interval a larger one"
            )
