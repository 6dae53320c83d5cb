"""The server's model: which of a module's tensors travel, and how a round's combined tensors become its new weights."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor, nn
from torch.optim import Optimizer

from fedgen.federated.aggregators.mean import Aggregator, ClientWeights, Mean, weight_of, wide
from fedgen.federated.algorithms.algorithm import ClientAlgorithm
from fedgen.federated.client_state.counters import Counters
from fedgen.federated.client_state.exchange import Exchange, Switches, trained_parameters
from fedgen.federated.client_state.local_state import OptimizerState
from fedgen.federated.client_state.memory import ClientMemory
from fedgen.federated.client_state.rules import Rule, Rules
from fedgen.federated.compression.compressor import Compressor
from fedgen.federated.lightning.lightning_internals import empty_buffers
from fedgen.federated.promises import check_counters
from fedgen.federated.schedules import Schedule, check_rates, factor_in
from fedgen.federated.server_optimizers import ServerUpdate, as_real

MASKED_NUMBER = 8  # bytes of an entry under secure aggregation


@dataclass
class RoundSettings:
    """The settings of a federation's rounds; see `FedAvgStrategy`.

    Args:
        fixed: whether what travels is fixed before training, as under secure aggregation.
        compression: of clients' updates; None sends them as they are.
    """

    interval: int
    client_weights: ClientWeights = "examples"
    server_optimizer: Callable[[Iterable[Tensor]], Optimizer] | None = None
    optimizer_state: OptimizerState = "reset"
    personal: Sequence[str] = ()
    rules: Mapping[str, Rule] = field(default_factory=dict)
    aggregator: Aggregator = field(default_factory=Mean)
    client_algorithm: ClientAlgorithm = field(default_factory=ClientAlgorithm)
    client_schedule: Schedule | None = None
    server_schedule: Schedule | None = None
    fixed: bool = False
    compression: Compressor | None = None

    def weight_of(self, num_examples: int) -> float:
        """Return what a client of so many examples weighs."""
        return weight_of(num_examples, self.client_weights)


class ServerModel:
    """The server's part of a module; made anew where callbacks thaw or freeze layers, or tensors grow.

    Args:
        module: the model.
        optimizers: all of them, the server's too.
        settings: of the rounds.
        memory: whose clients keep personal tensors.

    Attributes:
        exchange: what travels.
        switches: what a turn may leave behind beside tensors.
        rules: the declared ones.
        trainable: tensors that clients train and send, by name.
        counters: integer and boolean tensors of the round.
        update: from combined tensors to the server's.
        aggregator: of the rounds.
    """

    def __init__(
        self, module: nn.Module, optimizers: Sequence[Optimizer], settings: RoundSettings, memory: ClientMemory
    ) -> None:
        self._module, self._optimizers, self._settings, self._memory = module, optimizers, settings, memory
        self.aggregator = settings.aggregator
        self._make(())

    def _make(self, moving: Iterable[str]) -> None:
        module, settings = self._module, self._settings
        self.switches = Switches(module)
        trained = trained_parameters(module, self._optimizers)
        self._trained = set(map(id, trained))
        own: dict[str, Rule] = {n: "personal" for pattern in settings.personal for n in empty_buffers(module, pattern)}
        self.rules = Rules(own | dict(settings.rules), module)
        self.exchange = Exchange(module, trained, settings.personal, self.rules, settings.fixed, moving)
        if settings.aggregator.private or settings.fixed:
            check_counters(self.exchange, module)
        self.trainable = self.exchange.trainable
        self.exchange.beside = settings.client_algorithm.num_bytes(self.trainable)
        if settings.compression is not None:
            self.exchange.compressed = compressed_bytes(settings.compression, self.trainable)
        elif settings.fixed:
            shared = self.exchange.shared.items()
            self.exchange.compressed = {name: MASKED_NUMBER * as_real(tensor).numel() for name, tensor in shared}
        self.exchange.snapshot()
        self._memory.match_personal(self.exchange)
        self.counters = Counters(self.exchange.declared, self.exchange.advancing, settings.aggregator.robust)
        self.update = ServerUpdate(self.exchange.server, self.exchange.trained, settings.server_optimizer)
        check_rates(settings.server_schedule, [self.update.optimizer])

    def renew(self) -> None:
        """Make it again from the module as it is now.

        Raises:
            MisconfigurationException: if the server optimizer has state for another set of parameters.
        """
        present = self.update
        self._make(self.exchange.moving)
        self.update.replace(present)

    @property
    def trains_others(self) -> bool:
        """Whether other parameters train than when this was made: callbacks thaw layers between rounds."""
        trained = trained_parameters(self._module, self._optimizers)
        return self.switches.thawed_or_frozen() or set(map(id, trained)) != self._trained

    def start_round(self) -> None:
        """Take the module's tensors as the server's."""
        if self.trains_others or not self.exchange.still_fits():
            self.renew()
        self.exchange.snapshot()

    def grow(self, names: Sequence[str] | None = None) -> None:
        """Let tensors travel that a turn has changed and that did not before; None looks at the module."""
        exchange, personal = self.exchange, len(self.exchange.personal)
        if grown := exchange.grow(names):
            places = [place for place, name in enumerate(exchange.shared) if name in set(grown)]
            self.aggregator.grow([exchange.server[name] for name in grown], places)
        if len(exchange.personal) > personal:
            self._memory.match_personal(exchange)

    def in_place_of(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return a module's state within a turn with the server's tensors in place of a client's."""
        first, server = self.exchange.first_names, self.exchange.server
        return {name: server.get(first.get(name, name), value) for name, value in state.items()}

    def apply(self, combined: Sequence[Tensor], round: int) -> None:
        """Take a step of the server, and put its new model into the module."""
        schedule = self._settings.server_schedule
        factor = 1.0 if schedule is None else factor_in(schedule, round)
        self.update.apply(list(self.exchange.shared), combined, factor)
        if self.exchange.counters:
            self.counters.end_round(self.exchange.server, self._settings.interval)
        self.exchange.load_server()


def compressed_bytes(compressor: Compressor, parameters: Mapping[str, Tensor]) -> dict[str, int]:
    """The bytes that a client sends for each parameter, by name."""
    forms = {name: as_real(wide(tensor)) for name, tensor in parameters.items()}
    return {name: compressor.num_bytes(tuple(form.shape), form.dtype) for name, form in forms.items()}
