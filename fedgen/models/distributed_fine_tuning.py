"""A generator trained against a server's own images and, by their MMD^2 or FID, towards clients who keep theirs."""

import copy
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal

import torch
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from torch import Tensor, nn

from fedgen.data import DataSet, Examples
from fedgen.data.examples import Batch, draw_batches, to_batch
from fedgen.data.optional_attributes import optional
from fedgen.io.files import in_bytes
from fedgen.losses import AdaptiveWeight, DistributedLoss, EmbeddedLoss, FeatureLoss, OneMessageLoss
from fedgen.losses.distributed import Traffic, check_mean_of_clients
from fedgen.models.checkpoint_file import OPTIMISED_ON
from fedgen.models.latent_generator import LatentGenerator
from fedgen.models.networks.network import build, describe
from fedgen.models.optional_hooks import FederatedData, FederatedModule, data_module_of
from fedgen.models.require import require
from fedgen.models.round_clock import RoundClock, RoundMeans
from fedgen.seeds import generator, resolve, seed_all

Form = Literal["exact", "local", "message"]
FORMS = ("exact", "local", "message")


def loss_of_form(loss: FeatureLoss, form: Form) -> FeatureLoss:
    """Return the loss that a form puts in the place of one."""
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
    """Refuse a strategy under which a form cannot train."""
    require(
        federated or form != "local",
        f"form='local' is federated averaging of the generator: use FedAvgStrategy, got {name}",
    )
    require(
        not federated or form == "local",
        f"form={form!r} trains on the server alone: use Trainer(strategy='auto'), got {name}",
    )


class TrafficAccount:
    """The bytes of a training, over all clients, and those since they were last told."""

    def __init__(self, before: Traffic | None = None) -> None:
        before = before or Traffic()
        self._in_turns = Traffic(before.down, before.up, before.questions)
        self._told = before

    def add_turn(self, strategy: Any, completed: bool) -> None:
        """Count what was sent for a client's turn."""
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


@dataclass(frozen=True, eq=False)
class ServerData:
    """Images in the place of a data module, whose one owner is the server; batches follow from (seed, round)."""

    data: Examples
    batch_size: int
    seed: int
    name: str = "the server"

    def __post_init__(self) -> None:
        require(len(self.data) > 0, f"the server's data {self.data.name} have no image")
        require(self.batch_size >= 1, f"batch={self.batch_size}: a batch has at least one image")

    @property
    def clients(self) -> list["ServerData"]:
        return [self]

    @cached_property
    def train(self) -> Tensor:
        return torch.arange(len(self.data))

    @property
    def image_shape(self) -> tuple[int, ...]:
        return tuple(self.data.inputs.shape[1:])

    def batches(self, round: int, iterations: int) -> Iterator[Batch]:
        """Batches (images float [B, C, H, W] in [-1, 1], labels int64 [B]) of a round."""
        draws = generator(self.seed, "server batches", round)
        for positions in draw_batches(len(self.data), self.batch_size, iterations, draws):
            yield to_batch(self.data, positions)

    def some(self, count: int) -> Tensor:
        """At most `count` images uint8 [n, C, H, W] at random."""
        chosen = torch.randperm(len(self.data), generator=generator(self.seed, "public images"))[:count]
        return self.data.inputs[chosen]


TRAFFIC = "traffic"  # the key of what was sent; older checkpoints have none
PUBLIC = 10_000  # of the server's images, at most, that references are approximated on


@dataclass(frozen=True)
class LocalSteps:
    """Options of a round of the form "local".

    Args:
        server_iterations: of the game on the server's images, after the clients' turns.
        images: generated for one local step.
        lr: of the clients' optimizer.
        optimizer: "adam" or "sgd".
        betas: of Adam.
        common_latents: whether all clients draw the same latents in a round, which is more noise in their mean.

    Raises:
        ValueError: for a value out of range.
    """

    server_iterations: int = 160
    images: int = 64
    lr: float = 1e-4
    optimizer: Literal["adam", "sgd"] = "adam"
    betas: tuple[float, float] = (0.0, 0.99)
    common_latents: bool = False

    def __post_init__(self) -> None:
        require(self.server_iterations >= 0, f"server_iterations={self.server_iterations}: count from 0")
        require(self.images >= 1, f"images={self.images}: a step needs at least one")
        require(self.lr > 0, f"lr must be positive, got {self.lr}")
        require(self.optimizer in ("adam", "sgd"), f"optimizer={self.optimizer!r}: choose 'adam' or 'sgd'")

    def make(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        """The clients' optimizer."""
        if self.optimizer == "sgd":
            return torch.optim.SGD(parameters, lr=self.lr)
        return torch.optim.Adam(parameters, lr=self.lr, betas=(float(self.betas[0]), float(self.betas[1])))


class DistributedFineTuning(RoundClock):
    """Fine-tuning of a game on the server's images with a score to the clients' images as a second objective.

    The clients' images are those of the trainer's `FederatedDataModule`. Three forms, of the same objective: "exact"
    asks clients about every generated batch (`DistributedLoss`), "message" once, when fitting starts, with the server's
    images as public ones (`OneMessageLoss`); both run under any strategy for one process, and a batch of the trainer's
    loader, whose content is not used, stands for an iteration. In the form "local", under `FedAvgStrategy`, a client
    takes steps of the generator on its own score (aggregate "own"), by an optimizer of its own; generators, and nothing
    else, are averaged; then the server takes iterations of the game on its images.

    Batches of the server and latents follow from (seed, round). At a round's end the game's means are logged, what the
    objective measured ("kid_loss/<embedding>", "kid_loss/weight"), and what was sent in the round, over all clients:
    `megabytes_down` and `megabytes_up`; `traffic` has the bytes of the whole training, resumed or not.

    Where clients are elsewhere, the data module gives the objective its references itself, by its
    `give_references(objective, device)`: clients that are asked over a network, or on a client's own machine
    (`is_one_client`) the images there, with which it takes turns of the form "local" and needs no server's data.

    `load_from_checkpoint(path).sample(16)` needs nothing else; to train on, pass objective and data again.

    Args:
        model: a `GAN` or `StyleGAN2`, whose networks usually come from earlier training.
        objective: the score and its embeddings, weight included: `EmbeddedLoss(MMD2Loss(), embeddings, weight=5.0)`, or
            `FastFIDLoss(aggregate="avg")` for "exact" and "local", `FastFIDLoss(aggregate="all")` for "message". The
            form replaces its loss, but a `DistributedLoss` or `OneMessageLoss` with settings of its own.
        server_data: the server's images: a data set, of which the training split is used, or examples.
        form: see above.
        batch: of the server's images, an iteration.
        local: see `LocalSteps`; of the form "local" alone.
        seed: of the server's batches and latents; what `seed_everything` was given by default.

    Raises:
        ValueError: for a model without a critic or one that trains its generator on a server, another form, or a loss
            that does not fit the form; when `fit` starts, without objective, server's data or clients, for a client
            without images, or under a strategy that does not fit the form.
    """

    server_iterations: Tensor

    own_turn_state = ("_step", "_account", "_batches")
    federated_rules: ClassVar[dict[str, str]] = {"server_iterations": "server"}

    def __init__(
        self,
        model: LatentGenerator,
        objective: EmbeddedLoss | None = None,
        server_data: DataSet | Examples | None = None,
        form: Form = "exact",
        batch: int = 64,
        local: LocalSteps | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        require(form in FORMS, f"form={form!r}: choose {', '.join(map(repr, FORMS))}")
        require(batch >= 1, f"batch={batch}: a batch has at least one image")
        self.automatic_optimization = False
        self.model: LatentGenerator = build(model, "model", LatentGenerator, "model")
        require(
            hasattr(self.model, "critic")
            and optional(self.model, FederatedModule, "generator_trained_by") == "clients",
            f"DistributedFineTuning plays a game on the server's images: give a StyleGAN2, or a GAN with"
            f" generator_trained_by='clients', got {type(self.model).__name__}",
        )
        self.form: Form = form
        self.batch, self.server_data, self.seed = batch, server_data, resolve(seed)
        self.local = LocalSteps(**local) if isinstance(local, Mapping) else local or LocalSteps()
        self.num_classes, self.label_frequencies = self.model.num_classes, self.model.label_frequencies
        self.register_buffer("server_iterations", torch.zeros((), dtype=torch.int64))
        self.local_losses = nn.ModuleList()
        self._objectives: list[EmbeddedLoss] = []  # in a list, as it is a submodule elsewhere
        if objective is not None:
            self._take(objective)
        self._batches: Iterator[Batch] = iter(())
        self._step = 0  # within a client's turn
        self._is_client = False  # whether one client takes its turns here and the server is elsewhere
        self._account = TrafficAccount()
        if form == "local":
            self.server_optimizers = (0, 1)
            self.unexchanged = tuple(f"model.{n}." for n, _ in self.model.named_children() if n != "generator")
            # clients elsewhere are told by what labels they draw
            self.server_only = tuple(name for name in self.unexchanged if name != "model.label_frequencies.")
        described = describe(self.model) | {"init_args": dict(self.model.hparams)}
        self.save_hyperparameters(
            {"model": described, "form": form, "batch": batch, "local": asdict(self.local), "seed": self.seed}
        )

    def _take(self, objective: EmbeddedLoss) -> None:
        """Puts the form's losses into the objective, and it where it belongs."""
        require(
            not (self.form == "local" and isinstance(objective.weight, AdaptiveWeight)),
            "AdaptiveWeight follows a critic's loss, and clients' turns have no critic; give the objective a number as"
            " its weight",
        )
        objective.replace_losses(lambda loss: loss_of_form(loss, self.form))
        self._objectives = [objective]
        if self.form == "local":
            self.local_losses.append(objective)
        else:
            self.model.add_loss(objective)

    @property
    def objective(self) -> EmbeddedLoss | None:
        """The score to the clients."""
        return self._objectives[0] if self._objectives else None

    @property
    def traffic(self) -> Traffic:
        """The bytes of the whole training, over all clients; a checkpoint has what was sent before it."""
        return self._account.total(loss for objective in self._objectives for loss in objective.losses)

    # ---- before training ----

    def configure_optimizers(self) -> Any:
        """The game's optimizers, and after them the clients' own."""
        found = self.model.configure_optimizers()
        if self.form != "local":
            return found
        optimizers, schedulers = found if isinstance(found, tuple) else (found, [])
        own = self.local.make([p for p in self.model.generator.parameters() if p.requires_grad])
        return [*optimizers, own], schedulers

    def setup(self, stage: str) -> None:
        """Checks model, data, clients and strategy; gives the objective its references, asking clients that are asked.

        Raises:
            ValueError: if they do not fit each other.
        """
        if stage != "fit":
            return
        objective, data = self.objective, data_module_of(self.trainer)
        if objective is None:
            raise ValueError("DistributedFineTuning has no objective; give an EmbeddedLoss(MMD2Loss(), ...)")
        self._is_client = bool(optional(data, FederatedData, "is_one_client"))
        check_strategy(self.form, self._strategy_calls(), type(self.trainer.strategy).__name__)
        for client in optional(data, FederatedData, "clients") or ():
            require(len(client.train) > 0, f"client {client.name} has no training image; leave it out of the partition")
        if not self._is_client:
            self._start_server(objective)
        self._account = TrafficAccount()
        if elsewhere := optional(data, FederatedData, "give_references"):
            elsewhere(objective, self.trainer.strategy.root_device)
        self.model.setup(stage)
        if self.form == "local" and not elsewhere:
            self.model.start_loss(objective)
        names = [*objective.names, "weight"] if self.form == "local" else []
        self.means = RoundMeans(*(f"{objective.score}_loss/{name}" for name in names))

    def _start_server(self, objective: EmbeddedLoss) -> None:
        if self.server_data is None:
            raise ValueError("DistributedFineTuning has no server_data for its game; give a data set")
        data = self.server_data.load("train") if isinstance(self.server_data, DataSet) else self.server_data
        server = ServerData(data, self.batch, self.seed)
        self.model.own_data, self._server = server, server
        if any(isinstance(loss, OneMessageLoss) and loss.wants_public for loss in objective.losses):
            objective.set_public(server.some(PUBLIC), self.trainer.strategy.root_device)

    def teardown(self, stage: str) -> None:
        """Tear the model down."""
        self.model.teardown(stage)

    # ---- training ----

    def on_turn_start(self, turn: Any) -> None:
        """Starts a client's turn, in the form "local"."""
        super().on_turn_start(turn)
        if self.form == "local":
            self._step = 0
            # a client that is alone knows its own images and nobody's number
            self._objectives[0].start_turn(None if self._is_client else turn.client)

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Starts the server's round and iteration, in the forms that train on the server alone."""
        super().on_train_batch_start(batch, batch_idx)
        if self.form == "local":
            return
        if batch_idx == 0:
            count = self.trainer.num_training_batches
            require(
                count < float("inf"), "a round has no end: give the data module iterations=..., or limit_train_batches"
            )
            self._start_round(int(count))
        self.model.on_train_batch_start(None, batch_idx)

    def _start_round(self, iterations: int) -> None:
        seed_all(self.seed, "server", self.current_epoch)
        self._batches = self._server.batches(self.current_epoch, iterations)

    def training_step(self, batch: Any, batch_idx: int) -> None:
        """A client's step on its own score, or the server's iteration; the batch itself is not used."""
        if self.form == "local":
            self._local_step()
        else:
            self._iterate(batch_idx)

    def _iterate(self, batch_idx: int) -> None:
        """One iteration of the game on a batch of the server's images."""
        batch = self.trainer.precision_plugin.convert_input(next(self._batches))
        self.model.training_step(self.trainer.strategy.batch_to_device(batch), batch_idx)

    def _local_step(self) -> None:
        optimizer: Any = self.optimizers()[-1]
        own = self.model.start_step(optimizer)
        if self.local.common_latents:
            seed_all(self.seed, "latents", self.current_epoch, self._step)
        self._step += 1
        for part in self._objectives[0].backward_parts(*self.model.draw(self.local.images), None):
            self.model.manual_backward(part, inputs=own)
        optimizer.step()

    def on_turn_end(self, completed: bool) -> None:
        """Counts what was measured in the turn and what was sent for it."""
        if self.form == "local":
            self._account.add_turn(self.trainer.strategy, completed)
            self.means.add(*self._objectives[0].take_totals())
        else:
            self.model.on_turn_end(completed)
        super().on_turn_end(completed)
        for loss in self._objectives:
            loss.start_turn(None)

    def on_round_end(self, iterations: int) -> None:
        """Lets the server play its game, in the form "local"; moves the average of the generator's weights."""
        steps = 0
        if self.form == "local":
            steps = self.local.server_iterations
            self._start_round(steps)
            self.model.on_turn_start(None)
            with self.trainer.precision_plugin.train_step_context():
                for _ in range(steps):
                    self._iterate(int(self.server_iterations))
                    self.server_iterations += 1
            self.model.on_turn_end(True)
        self.model.on_round_end(iterations + steps)

    def take_means(self) -> dict[str, float]:
        """The round's means, and what was sent in it."""
        if self._is_client:  # the server counts
            return self.model.take_means() | super().take_means()
        now = self.traffic
        since, is_first = self._account.tell(now)
        sent = {"megabytes_down": since.down / 1e6, "megabytes_up": since.up / 1e6}
        if is_first:
            rank_zero_info(
                f"form {self.form!r}: {in_bytes(now.down)} to the clients and {in_bytes(now.up)} from them in a round"
                " and before it"
            )
        heard: Mapping[str, float] = optional(data_module_of(self.trainer), FederatedData, "take_metrics")()
        return self.model.take_means() | super().take_means() | sent | dict(heard)

    def on_train_epoch_end(self) -> None:
        """Logs the round's means, and moves learning rates."""
        self.log_means()
        self.model.step_schedulers()

    # ---- after training ----

    @property
    def sampling(self) -> dict[str, Any]:
        """The model's settings of sampling, if it has any."""
        found: dict[str, Any] = self.model.sampling
        return found

    @sampling.setter
    def sampling(self, settings: Mapping[str, Any]) -> None:
        self.model.sampling = settings

    def sample(
        self,
        num_images: int,
        generator: torch.Generator | None = None,
        labels: Tensor | None = None,
        batch_size: int = 250,
        **options: Any,
    ) -> Tensor:
        """Draw images as the model does: float32 [num_images, C, H, W] in [-1, 1]."""
        return self.model.sample(num_images, generator, labels, batch_size, **options)

    @property
    def fingerprints(self) -> dict[str, str]:
        """The fingerprints of the objective's embeddings, by name: clients elsewhere must have the same."""
        return {str(e.name): e.fingerprint() for o in self._objectives for e in o.embeddings}

    @property
    def optimised_on(self) -> list[str]:
        """Embeddings that the objective, another loss of the model or an earlier training used."""
        own = (name for loss in self._objectives for name in loss.names)
        return list(dict.fromkeys([*self.model.optimised_on, *own]))

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Adds what was optimised, and what was sent."""
        checkpoint[OPTIMISED_ON] = self.optimised_on
        checkpoint[TRAFFIC] = asdict(self.traffic)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Takes what was optimised and sent, and leaves out the saved state of an objective that this module has not.

        What other losses of the model remembered belongs to a model that is given with them.
        """
        self.model.on_load_checkpoint(checkpoint)
        # clients that were asked in this process, when it set up, are counted by the losses
        self._account = TrafficAccount(Traffic(**checkpoint.get(TRAFFIC, {})))
        if not self._objectives:
            own = ("local_losses.", *(() if self.model.generator_losses else ("model.loss_modules.",)))
            state = checkpoint["state_dict"]
            for key in [key for key in state if key.startswith(own)]:
                del state[key]
