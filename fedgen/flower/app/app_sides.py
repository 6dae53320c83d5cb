"""The sides of the two Flower apps of a deployed recipe: a client's answers, and the server's run."""

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial, wraps
from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from lightning.pytorch import Callback, LightningModule, Trainer

from fedgen.callbacks import RoundCheckpoint
from fedgen.federated.left_out import log_dropped, report_of
from fedgen.flower.app.recipe import for_server, read_settings
from fedgen.flower.app.run_config import (
    CHECKPOINT,
    CLIENTS,
    DEADLINE,
    LEAST_ANSWERS,
    MOST_IMAGES,
    OUTPUT,
    RANGE,
    SECURE,
    SIMULATION,
    WAIT,
    RunLabels,
    check_config,
    privacy_of,
    run_name,
)
from fedgen.flower.client.client_node import ClientNode, is_promised, refuse_open, telling_types
from fedgen.flower.client.local_data import NodeData, is_simulated
from fedgen.flower.client.pins import hold_to_clients
from fedgen.flower.client.policy import NAME, PARTITION, PARTITIONS, STATE, VARIABLE, Policy
from fedgen.flower.secure_aggregation.agreement import AskedSum
from fedgen.flower.secure_aggregation.secure_mean import masked
from fedgen.flower.secure_aggregation.secure_strategy import summand
from fedgen.flower.server.client_registry import ClientRegistry
from fedgen.flower.server.connection import LEAST, Connection
from fedgen.flower.server.flower_strategy import FlowerStrategy
from fedgen.flower.server.remote_data import RemoteClients
from fedgen.flower.wire.answer_forms import Ranges
from fedgen.flower.wire.flower_records import from_records, to_records
from fedgen.flower.wire.messages import ABOUT_LOSS, LossQuestion, Question, Task
from fedgen.seeds import isolated
from fedgen.training.fit import FedgenCLI, train

_LOGGERS = ("lightning.pytorch.utilities.rank_zero", "lightning.fabric.utilities.seed")
# how lines begin that they would say of each of thousands of messages
_OF_EACH = ("GPU available", "TPU available", "Seed set to", "💡", "`Trainer.fit` stopped: `max_epochs")
_SAID: set[str] = set()  # those of them that this process has said


def client_side(recipe: Path) -> ClientApp:
    """The app of each client, which answers in this process."""
    app = ClientApp(mods=[partial(masked, check=_check_sum)])
    node_of = partial(_client_node, recipe)

    def discreetly(handle: Callable[[Message, Context], Message]) -> Callable[[Message, Context], Message]:
        @wraps(handle)
        def handled(message: Message, context: Context) -> Message:
            promised = is_promised(read_settings(recipe), context.run_config)
            with telling_types(promised), isolated(), _saying_once():
                return handle(message, context)

        return handled

    @app.query()
    @discreetly
    def hello(message: Message, context: Context) -> Message:
        return Message(to_records(node_of(context).hello()), reply_to=message)

    @app.train()
    @discreetly
    def take_turn(message: Message, context: Context) -> Message:
        client_node = node_of(context)
        if context.run_config.get(SECURE):
            return Message(summand(client_node, message, context.run_config, context.state), reply_to=message)
        return Message(to_records(client_node.take(from_records(Task, message))), reply_to=message)

    @app.evaluate()
    @discreetly
    def look_up(message: Message, context: Context) -> Message:
        question: Question = from_records(Question, message)
        refuse_open(context.run_config, False, [item[0] for item in question.items])
        privacy = privacy_of(context.run_config)
        return Message(to_records(node_of(context).look_up(question, privacy)), reply_to=message)

    @app.query(ABOUT_LOSS)
    @discreetly
    def answer(message: Message, context: Context) -> Message:
        refuse_open(context.run_config, False, [ABOUT_LOSS])
        question: LossQuestion = from_records(LossQuestion, message)
        return Message(to_records(node_of(context).tell(question)), reply_to=message)

    return app


@contextmanager
def _saying_once() -> Iterator[None]:
    """Says once in a process what a fit says of devices, the seed, its bytes and its end; all else as it comes."""

    def is_heard(line: logging.LogRecord) -> bool:
        text = line.getMessage()
        start = next((one for one in _OF_EACH if text.startswith(one)), None)
        is_new = start not in _SAID
        if start is not None:
            _SAID.add(start)
        return is_new

    for name in _LOGGERS:
        logging.getLogger(name).addFilter(is_heard)
    try:
        yield
    finally:
        for name in _LOGGERS:
            logging.getLogger(name).removeFilter(is_heard)


def run_server(recipe: Path, grid: Grid, config: Mapping[str, Any]) -> FedgenCLI:
    """Runs a federation to its end; ValueError for a config with an unknown key, or a value that a key cannot have."""
    check_config(config)
    output = Path(str(config.get(OUTPUT, "fedgen-run")))
    settings = read_settings(recipe)
    deadline, wait = float(config.get(DEADLINE, 0)) or None, float(config.get(WAIT, 600.0))
    hidden, labels = bool(config.get(SECURE, False)), RunLabels.of_run(config)
    if not 0 < (least := float(config.get(LEAST_ANSWERS, LEAST))) <= 1:
        raise ValueError(f"{LEAST_ANSWERS}={least:g} in the run's config: a part of the clients lies in (0, 1]")
    registry = ClientRegistry(grid, deadline, labels, int(config.get(MOST_IMAGES, 0)))
    connection = Connection(
        grid,
        registry,
        deadline,
        hidden,
        wait,
        labels,
        least,
        float(config.get(RANGE, 0)),
        Ranges.of_run(config),
        privacy_of(config),
    )
    registry.wait_for_clients(output, int(config[CLIENTS]), wait)
    cli = ServerCLI(for_server(settings, output, hidden), connection, str(config.get(CHECKPOINT, "")) or None)
    train(cli)
    return cli


def _places(context: Context) -> tuple[NodeData, Path]:
    """Return what a node says of its data, and the folder of what it keeps of all runs."""
    own, run = context.node_config, context.run_config
    # a run names no folder on the disk of anybody's node
    bare = own.keys() <= {PARTITION, PARTITIONS} and not os.environ.get(VARIABLE)
    simulated = Path(str(run[SIMULATION])) if run.get(SIMULATION) and bare and is_simulated() else None
    data = NodeData.of_node(own, simulated)
    return data, Path(str(own.get(STATE, data.state)))


def _check_sum(context: Context, made: AskedSum, nodes: Sequence[int]) -> None:
    """Refuses to help unmask a sum over too few clients, or over others than it was over before."""
    Policy.of_node(context.node_config).check_clients(len(nodes))
    if made.what:
        folder = _places(context)[1] / run_name(context.run_config)
        hold_to_clients(folder, made.what, [made.names[node] for node in nodes])


def _client_node(recipe: Path, context: Context) -> ClientNode:
    settings = read_settings(recipe)
    own, run = context.node_config, context.run_config
    policy = Policy.of_node(own)
    data, state = _places(context)
    policy.check_run(run_name(run), recipe, bool(run.get(SECURE)))
    name = str(own.get(NAME, data.name))
    return ClientNode(recipe, data, state / run_name(run), name, is_promised(settings, run), policy)


class EndReport(Callback):
    """Says at the end who was left out, as `FedAvgStrategy` does by itself."""

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        log_dropped(report_of(trainer))

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        log_dropped(report_of(trainer))


class ServerCLI(FedgenCLI):
    """`FedgenCLI` of `for_server`'s settings, with data and strategy connected, from a checkpoint (None: the last)."""

    previous = f"--run-config '{CHECKPOINT}=\"previous\"'"

    def __init__(self, settings: Mapping[str, Any], connection: Connection, ckpt_path: str | None) -> None:
        self._connection = connection
        super().__init__(args={**settings, "ckpt_path": ckpt_path})

    def instantiate_classes(self) -> None:
        """Make what LightningCLI makes; data and strategy with the connection."""

        def connected(kind: Callable[..., Any], **settings: Any) -> Any:
            return kind(_connection=self._connection, **settings)

        instantiators = [(connected, kind, True) for kind in (RemoteClients, FlowerStrategy)]
        self.config_init = self.parser.instantiate(self.config, instantiators=instantiators)
        self.datamodule, self.model = self.config_init.data, self.config_init.model
        self._add_configure_optimizers_method_to_model(self.subcommand)
        self.trainer = self.instantiate_trainer()

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        trainer = super().instantiate_trainer(**kwargs)
        for callback in trainer.callbacks:
            if isinstance(callback, RoundCheckpoint):
                callback.saving_share = 1.0  # clients go back with the server by one turn alone
        if not isinstance(trainer.strategy, FlowerStrategy):  # which reports by itself
            trainer.callbacks.append(EndReport())
        return trainer
