"""Generative adversarial networks as Lightning modules: one core, and a pair of networks and a game to choose."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from fnmatch import fnmatchcase
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from fedgen.data.optional_attributes import optional
from fedgen.models.adversarial import (
    AdversarialLoss,
    CriticLosses,
    WassersteinGP,
    check_images,
    check_pair,
    critic_function,
    generate,
)
from fedgen.models.latent_generator import GeneratorLoss, LatentGenerator
from fedgen.models.networks.network import arguments_of, build, describe, require_shape
from fedgen.models.networks.pair_layers import refresh
from fedgen.models.optional_hooks import Drawn, FederatedData, FunctionalStep, TurnTakingStrategy, overridden_below
from fedgen.models.require import require
from fedgen.models.sampling import evaluating, keeping_buffers

TrainedBy = Literal["clients", "server"]


class GAN(CriticLosses, LatentGenerator):
    """A generator and a critic that play a game against each other, trained under manual optimisation.

    One `training_step` is one iteration: a critic step, and every `n_critic`-th time a generator step. Nothing is
    logged per iteration; at a round's end `critic_loss`, `critic_gap` (mean critic(real) - mean critic(fake)),
    `generator_loss` and what embedded losses measured ("fid_loss/<embedding>", "fid_loss/weight"; of a second loss
    "fid_loss_2") are logged as means over its iterations, over all clients' turns.

    With networks that have `num_classes` the model is conditional: generated images get the real batch's labels. In an
    `EmbeddedLoss`'s second pass and in the server's steps, labels are drawn as often as the clients have them.

    Under `FedAvgStrategy` both networks are averaged. `personal: ["critic.*"]` keeps a critic with each client;
    `generator_trained_by: server` trains critics alone in clients' turns, and at a round's end the generator, which
    does not travel back, takes iterations // n_critic steps against the merged critic.

    A checkpoint holds the networks' and the game's class paths and arguments as plain types, and unpickles nothing:
    `load_from_checkpoint(path).sample(16)`. Only fedgen's own classes are rebuilt; others, and generator losses to
    train on, are passed: `load_from_checkpoint(path, generator=..., critic=...)`.

    Args:
        generator: images in [-1, 1] from latents [N, generator.latent_dim]; the pairs are in `fedgen.models.networks`.
        critic: scores [N] of images.
        loss: the game, e.g. `Hinge()`.
        n_critic: critic steps for one generator step, counted over the client's own iterations.
        lr: learning rate of both Adams.
        critic_lr: the critic's, if it is another (two time scales, Heusel et al. 2017).
        betas: decays of their moments.
        lr_decay_rounds: rounds over which the rates fall linearly to 0; constant by default.
        ema_decay: decay per iteration of the weights' average, moved at round ends, that draws images; None for none.
        ema_warmup: whether that average forgets faster at first, for short runs (see `EMA`).
        generator_losses: extra losses of the generator: `EmbeddedLoss` (FID or MMD^2 to the clients' images), or any
            objects that turn its images [N, C, H, W] in [-1, 1] into a scalar, their weight included.
        generator_trained_by: "clients", in their turns; or "server", at the ends of rounds.
        compile: whether `torch.compile` runs the generator, and the critic in games that differentiate it once.

    Raises:
        ValueError: for a value out of range, or networks that do not fit (some of it only when `fit` starts).
    """

    logged = ("critic_loss", "critic_gap", "generator_loss")

    own_turn_state = ("_turn_batch", "_largest_")

    def __init__(
        self,
        generator: nn.Module,
        critic: nn.Module,
        loss: AdversarialLoss,
        n_critic: int = 1,
        lr: float = 2e-4,
        critic_lr: float | None = None,
        betas: tuple[float, float] = (0.0, 0.9),
        lr_decay_rounds: int | None = None,
        ema_decay: float | None = None,
        ema_warmup: bool = False,
        generator_losses: Sequence[GeneratorLoss] | None = None,
        generator_trained_by: TrainedBy = "clients",
        compile: bool = False,
    ) -> None:
        settings = arguments_of(locals())
        del settings["generator_losses"]
        require(n_critic >= 1, f"n_critic must be at least 1, got {n_critic}")
        require(lr > 0, f"lr must be positive, got {lr}")
        require(critic_lr is None or critic_lr > 0, f"critic_lr must be positive, got {critic_lr}")
        require(lr_decay_rounds is None or lr_decay_rounds > 0, f"lr_decay_rounds must be above 0: {lr_decay_rounds}")
        require(
            generator_trained_by in ("clients", "server"),
            f"generator_trained_by={generator_trained_by!r}: choose 'clients' or 'server'",
        )
        super().__init__(build(generator, "generator"), generator_losses, ema_decay, ema_warmup)
        self.critic: nn.Module = build(critic, "critic")
        self.loss: AdversarialLoss = build(loss, "loss", AdversarialLoss, "game")
        check_pair(self.generator, self.critic, self.loss)
        self.n_critic, self.lr, self.critic_lr = n_critic, lr, critic_lr
        self.betas = (float(betas[0]), float(betas[1]))  # Adam refuses a mixture of int and float
        self.lr_decay_rounds, self.ema_warmup = lr_decay_rounds, ema_warmup
        self.generator_trained_by: TrainedBy = generator_trained_by
        self.compiles = compile
        if generator_trained_by == "server":  # neither changes in turns
            self.unexchanged = ("generator.", "loss_modules.")
        # images of a batch: of the present turn, of the round's turns, and of those before the present one
        self._turn_batch = self._largest_batch = self._largest_before = 0
        # an explicit dictionary: Lightning's own capture would store module objects, or class paths of anybody's code
        parts = {name: describe(getattr(self, name)) for name in ("generator", "critic", "loss")}
        self.save_hyperparameters(self._settings({**settings, **parts, "betas": self.betas}))

    def _settings(self, given: dict[str, Any]) -> dict[str, Any]:
        """The constructor's arguments as plain types, as checkpoints hold them; `given` are those of `GAN`."""
        return given

    # ---- before training ----

    def configure_optimizers(self) -> Any:
        """Two Adams, generator's first; with `lr_decay_rounds` a linear decay to 0 each, in rounds."""
        optimizers = [
            torch.optim.Adam(network.parameters(), lr=lr, betas=self.betas)
            for network, lr in ((self.generator, self.lr), (self.critic, self.critic_lr or self.lr))
        ]
        rounds = self.lr_decay_rounds
        if rounds is None:
            return optimizers
        return optimizers, [LambdaLR(optimizer, lambda done: max(0.0, 1 - done / rounds)) for optimizer in optimizers]

    def setup(self, stage: str) -> None:
        """Gives losses without references the clients' images, after checking that networks and data fit each other.

        Fitting again gives them the images of the data at hand; references that were set before the first are kept.
        The data's shape is known here if the data module has an attribute `image_shape`, (channels, height, width);
        otherwise the first iteration tells.

        Raises:
            ValueError: if they do not fit, or a loss needs clients' images and the data module has no clients.
        """
        if stage != "fit":
            return
        with evaluating(self):
            check_images(self.generator, self.critic, optional(self.data, FederatedData, "image_shape"))
        self._check_roles()
        self.start_losses()
        if self.compiles:
            self.compile_networks()

    def compile_networks(self) -> None:
        """Lets calls of the generator, and of the critic unless it is differentiated twice, run compiled."""
        for network in [self.generator] if self.loss.penalises_slopes else [self.generator, self.critic]:
            network.compile()

    def _check_roles(self) -> None:
        if self.generator_trained_by == "clients":
            return
        strategy, names = self.trainer.strategy, [f"critic.{name}" for name in self.critic.state_dict()]
        patterns = optional(strategy, TurnTakingStrategy, "personal")
        own = [pattern for pattern in patterns if any(fnmatchcase(name, pattern) for name in names)]
        require(
            not own,
            f"generator_trained_by='server' needs one merged critic, but personal={own} keeps critics with the clients;"
            " leave the pattern out, or let clients train the generator",
        )
        interval = optional(strategy, TurnTakingStrategy, "communication_interval")
        self._server_steps(interval or self.n_critic)

    def _server_steps(self, iterations: int) -> int:
        """Steps of the generator after a round of so many iterations, at least one."""
        require(
            iterations >= self.n_critic,
            f"a round has {iterations} iterations and n_critic={self.n_critic}: the server's generator would never"
            " take a step; make rounds longer or n_critic smaller",
        )
        return iterations // self.n_critic

    # ---- training ----

    def on_turn_start(self, turn: Any) -> None:
        """Starts a round's count, and tells the losses whose turn it is."""
        if self.opens_round(turn):
            self._largest_batch = 0
        self._largest_before = self._largest_batch
        # of a turn that a client takes on its own machine no batch is seen here
        self._turn_batch = turn.batch_length if turn is not None and turn.is_remote else 0
        super().on_turn_start(turn)

    def training_step(self, batch: Sequence[Tensor], batch_idx: int) -> None:
        """One iteration on (images [N, C, H, W] in [-1, 1], labels int64 [N], which unconditional models do not use).

        The generator's step comes with every n_critic-th of the client's own iterations.
        """
        real = batch[0]
        labels = None if self.label_frequencies is None else self.label_frequencies.labels_of(batch)
        optimizers: Any = self.optimizers()
        self.critic_step(optimizers[1], real, labels)
        self._turn_batch = max(self._turn_batch, len(real))
        if self.generator_trained_by == "clients" and (self.iteration(batch_idx) + 1) % self.n_critic == 0:
            self.generator_step(optimizers[0], len(real), labels)

    def critic_step(self, optimizer: Any, real: Tensor, labels: Tensor | None) -> None:
        """One step of the critic on real images, with labels int64 [N] if the model is conditional, and as many made.

        Raises:
            ValueError: if the images have another shape than the generator's.
        """
        by_server = self.generator_trained_by == "server"
        with torch.no_grad(), keeping_buffers(self.generator) if by_server else nullcontext():
            fake = generate(self.generator, self.draw_latents(len(real)), labels)
        require_shape(real, fake.shape[1:], "the generator")
        terms = self.loss.critic_loss(critic_function(self.critic, len(real), labels), real, fake)
        self.manual_backward(terms.loss, inputs=self.start_step(optimizer))
        optimizer.step()
        self.means.add({"critic_loss": terms.loss, "critic_gap": terms.gap})

    def generator_step(self, optimizer: Any, count: int, labels: Tensor | None) -> None:
        """One step of the generator on so many images, of labels int64 [count] if the model is conditional.

        What is logged as its loss leaves out the losses of second passes.
        """
        fake = generate(self.generator, self.draw_latents(count), labels)
        adversarial = self.loss.generator_loss(critic_function(self.critic, count, labels), fake)
        loss, more = adversarial, bool(self.generator_losses)
        if more:
            loss = self.add_joint_losses(loss, fake, adversarial.detach())
        own = self.start_step(optimizer)
        self.manual_backward(loss, inputs=own)
        if more:
            self.backward_separate_losses(count, adversarial.detach(), own)
        optimizer.step()
        self.means.add({"generator_loss": loss})

    # ---- the same steps in two parts each, what is drawn and a loss without draws ----

    def functional_steps(self, iteration: int) -> Sequence[FunctionalStep]:
        """The critic's step, and with every n_critic-th of the client's own iterations the generator's."""
        steps = [FunctionalStep("critic", 1, self.draw_for_critic, self.drawn_critic_loss)]
        if (iteration + 1) % self.n_critic == 0:
            steps.append(FunctionalStep("generator", 0, self.draw_for_generator, self.drawn_generator_loss))
        return steps

    @property
    def no_functional_steps(self) -> str | None:
        """Reason for which steps cannot be taken for many clients at once: None if they can."""
        if self.compiles:
            return "compiled networks train one client at a time (compile=True)"
        if self.generator_losses:
            return f"the generator has a loss of its own, {type(self.generator_losses[0]).__name__}"
        if self.generator_trained_by == "server":
            return "the generator trains on the server (generator_trained_by='server')"
        own = overridden_below(self, "functional_steps", ["critic_step", "generator_step"])
        if type(self.loss).drawn_critic_loss is AdversarialLoss.drawn_critic_loss:  # which calls the game's own
            return own
        return own or overridden_below(self.loss, "drawn_critic_loss", ["critic_loss"])

    def end_functional_turn(self, noted: Sequence[tuple[Mapping[str, Tensor], int]], batch_length: int) -> None:
        """Counts the turn's batches, and adds to the means what its steps noted."""
        self._turn_batch = max(self._turn_batch, batch_length)
        super().end_functional_turn(noted, batch_length)

    def draw_for_critic(self, batch: Sequence[Tensor]) -> dict[str, Tensor]:
        """Latents for the images that the critic is shown beside a batch, its labels, and what the game draws."""
        return self.draw_for_generator(batch) | self.loss.draw(batch[0])

    def draw_for_generator(self, batch: Sequence[Tensor]) -> dict[str, Tensor]:
        """Latents for as many images as a batch has, and its labels."""
        drawn = {"latents": self.draw_latents(len(batch[0]))}
        return drawn if self.label_frequencies is None else drawn | {"labels": self.label_frequencies.labels_of(batch)}

    def drawn_critic_loss(self, batch: Sequence[Tensor], drawn: Drawn) -> tuple[Tensor, dict[str, Tensor]]:
        """The critic's loss, and what a round's means are of."""
        real, labels = batch[0], drawn.get("labels")
        with torch.no_grad():
            fake = generate(self.generator, drawn["latents"], labels)
        require_shape(real, fake.shape[1:], "the generator")
        terms = self.loss.drawn_critic_loss(critic_function(self.critic, len(real), labels), real, fake, drawn)
        return terms.loss, {"critic_loss": terms.loss, "critic_gap": terms.gap}

    def drawn_generator_loss(self, batch: Sequence[Tensor], drawn: Drawn) -> tuple[Tensor, dict[str, Tensor]]:
        """The generator's adversarial loss, twice: to be differentiated and noted."""
        labels = drawn.get("labels")
        fake = generate(self.generator, drawn["latents"], labels)
        loss = self.loss.generator_loss(critic_function(self.critic, len(batch[0]), labels), fake)
        return loss, {"generator_loss": loss}

    # ---- turns and rounds ----

    def on_turn_end(self, completed: bool) -> None:
        """Counts the turn's largest batch, beside what was measured, if the turn was completed and is not refused."""
        self._largest_batch = max(self._largest_before, self._turn_batch if completed else 0)
        super().on_turn_end(completed)

    def on_round_end(self, iterations: int) -> None:
        """Lets the server train its generator, and moves the average of its weights by ema_decay ** iterations."""
        refresh(self.critic)
        if self.generator_trained_by == "server":
            self._train_on_server(self._server_steps(iterations))
        super().on_round_end(iterations)

    def _train_on_server(self, steps: int) -> None:
        """Steps of the generator against the merged critic, on as many images as the round's largest batch."""
        optimizers: Any = self.optimizers()
        largest = torch.tensor(self._largest_batch, device=self.device)  # of the turns that this process took
        count = int(self.trainer.strategy.reduce(largest, reduce_op="max"))
        for loss in self.embedded_losses:
            loss.start_turn(None)
        with self.trainer.precision_plugin.train_step_context():
            for _ in range(steps):
                self.generator_step(optimizers[0], count, self.draw_labels(count))

    def on_train_epoch_end(self) -> None:
        """Logs the round's means and moves the learning rates, which mean rounds."""
        super().on_train_epoch_end()
        self.step_schedulers()


class WGANGP(GAN):
    """The Wasserstein GAN with gradient penalty of Gulrajani et al. 2017 (arXiv 1704.00028), with the paper's values.

    Args:
        generator: images in [-1, 1] from latents [N, generator.latent_dim]; the pairs are in `fedgen.models.networks`.
        critic: scores [N] of images; without BatchNorm, as the penalty is per image.
        penalty: the weight of the gradient penalty.
        n_critic: critic steps for one generator step, counted over the client's own iterations.
        options: as for `GAN`.

    Raises:
        ValueError: as for `GAN`.

    Examples:
        >>> import torch
        >>> from fedgen import WGANGP
        >>> from fedgen.models.networks import SmallCritic, SmallGenerator
        >>> model = WGANGP(SmallGenerator(), SmallCritic(), n_critic=2)
        >>> model.sample(3, torch.Generator().manual_seed(0)).shape
        torch.Size([3, 1, 8, 8])
    """

    def __init__(
        self, generator: nn.Module, critic: nn.Module, penalty: float = 10.0, n_critic: int = 5, **options: Any
    ) -> None:
        super().__init__(generator, critic, WassersteinGP(penalty), n_critic=n_critic, **options)

    def _settings(self, given: dict[str, Any]) -> dict[str, Any]:
        return given | {"penalty": given.pop("loss")["init_args"]["penalty"]}
