"""The base of modules that train a generator of images: losses of its images, its moving average, and sampling."""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fedgen.data.optional_attributes import optional
from fedgen.losses import EmbeddedLoss, FeatureLoss
from fedgen.models.checkpoint_file import OPTIMISED_ON, read_optimised_on
from fedgen.models.ema import EMA
from fedgen.models.label_frequencies import LabelFrequencies, sampling_labels
from fedgen.models.networks.pair_layers import refresh
from fedgen.models.optional_hooks import FederatedData, FederatedModule, ImageNetwork, data_module_of
from fedgen.models.require import require
from fedgen.models.round_clock import RoundClock, RoundMeans
from fedgen.models.sampling import decode


class AtPositions(nn.Module):
    """A conditional generator as a function of positions int64 [n] in fixed latents and labels, to be cut in chunks."""

    def __init__(self, generator: nn.Module, latents: Tensor, labels: Tensor) -> None:
        super().__init__()
        self.generator = generator
        self.latents, self.labels = latents, labels

    def forward(self, positions: Tensor) -> Tensor:
        return self.generator(self.latents[positions], self.labels[positions])


# Callable[[Tensor], Tensor] would say more, but makes jsonargparse look for class paths of tensors
GeneratorLoss = Callable[..., Any]


class LatentGenerator(RoundClock):
    """A generator of images from latents, under manual optimisation, with losses of its images.

    Embedded losses get the clients' training images when fitting starts, hear whose turn it is, and what they measured
    is logged at a round's end ("fid_loss/<embedding>", "fid_loss/weight"; a second loss of that score is "fid_loss_2").
    """

    logged: tuple[str, ...] = ()
    """What a round's means are of, besides what embedded losses measure."""

    def __init__(
        self,
        generator: nn.Module,
        generator_losses: Sequence[GeneratorLoss] | None,
        ema_decay: float | None,
        ema_warmup: bool,
    ) -> None:
        super().__init__()
        require(ema_decay is None or 0 <= ema_decay < 1, f"ema_decay must be in [0, 1), got {ema_decay}")
        require(
            hasattr(generator, "latent_dim"),
            f"the generator {type(generator).__name__} needs an attribute latent_dim: the length of a latent",
        )
        self.automatic_optimization = False
        self.generator, self.ema_decay = generator, ema_decay
        self.latent_dim = int(generator.latent_dim)  # type: ignore[arg-type]
        # says that labels may be asked for
        self.num_classes: int | None = optional(generator, ImageNetwork, "num_classes")
        self.label_frequencies = None if self.num_classes is None else LabelFrequencies(self.num_classes)
        self.generator_ema = EMA(generator, ema_warmup) if ema_decay is not None else None
        self.generator_losses = list(generator_losses or ())
        for extra in self.generator_losses:
            name = type(extra).__name__
            require(
                not isinstance(extra, FeatureLoss),
                f"the generator loss {name} is one of features, not images; give EmbeddedLoss({name}(...), embeddings)",
            )
        # registered, so that losses that are modules follow the device and keep their state in checkpoints
        self.loss_modules = nn.ModuleList(loss for loss in self.generator_losses if isinstance(loss, nn.Module))
        self._lent: set[EmbeddedLoss] = set()  # whose references are the data's, not their maker's
        # FedAvg leaves alone what begins so; networks do not say it, as they may live on in another model
        self.unexchanged: tuple[str, ...] = ()
        self._frozen: Collection[str] = ()  # submodules of the generator of which nothing moves
        # by what trained these weights earlier
        self._optimised_before = list(optional(generator, FederatedModule, "optimised_on"))
        self.own_data: Any = None  # in the trainer's data module's place, if another module trains this one

    @property
    def embedded_losses(self) -> list[EmbeddedLoss]:
        """Those of the generator losses that are scores of its images."""
        return [loss for loss in self.generator_losses if isinstance(loss, EmbeddedLoss)]

    @property
    def optimised_on(self) -> list[str]:
        """Embeddings that a generator loss trains on, or an earlier training of it did; scores in them prove little."""
        names = (name for loss in self.embedded_losses for name in loss.names)
        return list(dict.fromkeys([*self._optimised_before, *names]))

    @property
    def data(self) -> Any:
        """The data that it trains on: its own, or the trainer's data module; None if there is neither."""
        return data_module_of(self.trainer) if self.own_data is None else self.own_data

    @property
    def shares_images(self) -> bool:
        """Whether a loss looks at clients' images elsewhere than in their own turns: at the server, or in others'."""
        by_server = optional(self, FederatedModule, "generator_trained_by") == "server"
        return any(by_server or any(one.aggregate != "own" for one in loss.losses) for loss in self._lent)

    # ---- losses, from fit to fit and turn to turn ----

    def add_loss(self, loss: EmbeddedLoss) -> None:
        """Adds a generator loss, as if it had been given to the constructor."""
        self.generator_losses.append(loss)
        self.loss_modules.append(loss)

    def start_losses(self) -> None:
        """Gives losses without references the clients' images, and a conditional model the frequencies of their labels.

        For `setup`; a further fit gives them the images of its data. ValueError if a loss finds no clients' images.
        """
        if self.label_frequencies is not None:
            self.label_frequencies.fit(self.data)
        self.means = RoundMeans(*self.logged, *(name for names in self._loss_names for name in names.values()))
        for loss in self.embedded_losses:
            self.start_loss(loss)

    def start_loss(self, loss: EmbeddedLoss) -> None:
        """Gives one loss the images of the trainer's clients, unless others were set before; see `start_losses`."""
        loss.take_totals()
        if loss.has_references and loss not in self._lent:
            return
        clients = optional(data_module_of(self.trainer), FederatedData, "clients")
        require(
            bool(clients),
            f"the generator loss on {', '.join(loss.names)} has no references and the data no clients to take"
            " them from; train on a FederatedDataModule, or call loss.set_references([images, ...]) first",
        )
        images = [client.train_examples.inputs for client in clients or ()]
        loss.set_references(images, self.trainer.strategy.root_device)
        self._lent.add(loss)

    def manual_backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        """Lightning's, outside autocast: each gradient in the precision of its own forward pass."""
        with torch.autocast(loss.device.type, enabled=False):
            super().manual_backward(loss, *args, **kwargs)

    def on_turn_start(self, turn: Any) -> None:
        """Tells the losses whose turn it is: the client under `FedAvgStrategy`, nobody's elsewhere."""
        super().on_turn_start(turn)
        for loss in self.embedded_losses:
            loss.start_turn(None if turn is None else turn.client)

    @property
    def _loss_names(self) -> list[dict[str, str]]:
        """The names under which each embedded loss logs its values: a score's second loss has a number."""
        scores: Counter[str] = Counter()
        found = []
        for loss in self.embedded_losses:
            scores[loss.score] += 1
            number = f"_{scores[loss.score]}" if scores[loss.score] > 1 else ""
            names = [*loss.names, "weight"]
            found.append({f"{loss.score}_loss/{name}": f"{loss.score}_loss{number}/{name}" for name in names})
        return found

    def _collect_losses(self) -> None:
        for loss, names in zip(self.embedded_losses, self._loss_names):
            values, steps = loss.take_totals()
            self.means.add({names[name]: value for name, value in values.items()}, steps)

    def on_turn_end(self, completed: bool) -> None:
        """Counts what was measured in a completed turn, embedded losses' values too; it is nobody's turn then."""
        self._collect_losses()
        super().on_turn_end(completed)
        for loss in self.embedded_losses:
            loss.start_turn(None)

    def take_means(self) -> dict[str, float]:
        """The round's means, embedded losses' values and weights among them."""
        self._collect_losses()  # of a server's steps, after the last turn
        return super().take_means()

    def on_train_epoch_end(self) -> None:
        """Logs the round's means."""
        self.log_means()

    def step_schedulers(self) -> None:
        """Moves the learning rates by a round."""
        schedulers: Any = self.lr_schedulers()
        for scheduler in schedulers if isinstance(schedulers, list) else [schedulers] if schedulers else []:
            scheduler.step()

    def on_round_end(self, iterations: int) -> None:
        """Moves the average of weights by ema_decay ** iterations; singular vectors follow weights that move."""
        refresh(self.generator, self._frozen)
        if self.generator_ema is not None and self.ema_decay is not None:
            self.generator_ema.update(self.generator, self.ema_decay**iterations)
            refresh(self.generator_ema.network, self._frozen)

    def add_joint_losses(self, loss: Tensor, images: Tensor, adversarial: Tensor) -> Tensor:
        """The loss, plus those of the generator losses that share its images [N, C, H, W]."""
        for extra in self.generator_losses:
            if not isinstance(extra, EmbeddedLoss):
                loss = loss + extra(images)
            elif not extra.separate:
                loss = loss + extra(images, adversarial)
        return loss

    def backward_separate_losses(self, count: int, adversarial: Tensor | None, own: list[Tensor]) -> None:
        """Adds the gradients in `own` of the generator losses that make images of their own, `count` by default."""
        for extra in self.embedded_losses:
            if extra.separate:
                generator, inputs = self.draw(extra.num_images or count)
                for part in extra.backward_parts(generator, inputs, adversarial):
                    self.manual_backward(part, inputs=own)

    def start_step(self, optimizer: Any) -> list[Tensor]:
        """The parameters that train, their gradients cleared; passed on as the only ones that gradients reach."""
        optimizer.zero_grad()
        return [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]

    def draw(self, count: int) -> tuple[nn.Module, Tensor]:
        """The generator as a function of one input an image, and so many inputs: latents, with labels drawn to them."""
        latents, labels = self.draw_latents(count), self.draw_labels(count)
        if labels is None:
            return self.generator, latents
        return AtPositions(self.generator, latents, labels), torch.arange(count, device=latents.device)

    def draw_latents(self, count: int) -> Tensor:
        """Draw latents [count, latent_dim] as the generator takes them, from the global generator of its device."""
        like = next(self.generator.parameters())
        return torch.randn(count, self.latent_dim, device=like.device, dtype=like.dtype)

    def draw_labels(self, count: int) -> Tensor | None:
        """Draw labels int64 [count] as often as the training data have them; None for an unconditional model."""
        return None if self.label_frequencies is None else self.label_frequencies.draw(count).to(self.device)

    # ---- after training ----

    @property
    def averaged(self) -> nn.Module:
        """The generator that images are sampled from: the moving average if there is one."""
        return self.generator if self.generator_ema is None else self.generator_ema.network

    def sample(
        self,
        num_images: int,
        generator: torch.Generator | None = None,
        labels: Tensor | None = None,
        batch_size: int = 250,
    ) -> Tensor:
        """Images float32 [num_images, C, H, W] in [-1, 1], on the module's device; the module is left as it was.

        Args:
            num_images: how many.
            generator: a CPU generator for the latents, which are drawn on the CPU whatever the device and in one go
                whatever the batch size; the global generator by default.
            labels: of a conditional model's images, int64 [num_images]; drawn after the latents, as often as the
                training data had them, by default. An unconditional model takes none.
            batch_size: images made at once, a bound on memory.

        Raises:
            ValueError: for labels that cannot be, or for fewer than one image.
        """
        latents, labels = self.latents_and_labels(num_images, generator, labels)
        return decode(self.averaged, latents, batch_size, labels)

    def latents_and_labels(
        self, num_images: int, generator: torch.Generator | None, labels: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Draw what `sample` makes images of, on the CPU: latents in one go, then labels unless they are given."""
        require(num_images >= 1, f"num_images must be at least 1, got {num_images}")
        latents = torch.randn(num_images, self.latent_dim, generator=generator)
        name = type(self).__name__
        return latents, sampling_labels(self.label_frequencies, labels, num_images, generator, name)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Adds what was optimised: losses are not rebuilt from a checkpoint, and scores must be marked all the same."""
        checkpoint[OPTIMISED_ON] = self.optimised_on

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Takes what was optimised, and leaves out the saved state of losses that this module was built without."""
        self._optimised_before = read_optimised_on(checkpoint, self._optimised_before)
        if not self.generator_losses:
            state = checkpoint["state_dict"]
            for key in [key for key in state if key.startswith("loss_modules.")]:
                del state[key]
