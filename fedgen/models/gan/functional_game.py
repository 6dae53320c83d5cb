"""The steps of a generator and a critic as functions, from which a strategy trains many clients at once."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from fedgen.models.conditioning import critic_function, generate
from fedgen.models.functional_step import Drawn, overridden_below
from fedgen.models.gan.adversarial import AdversarialLoss
from fedgen.models.latent_generator import LatentGenerator
from fedgen.models.networks.network import require_shape


class FunctionalGame(LatentGenerator):
    """`GAN`'s critic and generator steps in two parts each, what is drawn and a loss without draws."""

    critic: nn.Module
    loss: AdversarialLoss
    compiles: bool
    generator_trained_by: str
    _turn_batch: int

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
