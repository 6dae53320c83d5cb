"""A language model over bytes as an ordinary LightningModule: a small transformer that predicts the next character."""

from collections.abc import Sequence

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.nn import functional as F

from fedgen.data.text import VOCABULARY, decode, encode
from fedgen.models.require import require
from fedgen.models.sampling import evaluating, require_batch_size


class CharacterTransformer(LightningModule):
    """A causal transformer of pre-normalised layers (Vaswani et al. 2017, arXiv 1706.03762) trained by Adam.

    The loss of a window is the mean cross entropy, in nats, of each of its characters but the first, given those before
    it in the window. A round's mean is logged as "loss".

    Args:
        length: characters that are predicted in a window, the most that the model looks back.
        width: of the layers, a multiple of `heads`.
        layers: how many.
        heads: of each layer's attention.
        lr: learning rate of Adam.
        vocabulary: tokens that there are; 256 for bytes.

    Raises:
        ValueError: for a value out of range.
    """

    def __init__(
        self,
        length: int = 64,
        width: int = 96,
        layers: int = 2,
        heads: int = 4,
        lr: float = 2e-3,
        vocabulary: int = VOCABULARY,
    ) -> None:
        super().__init__()
        for name, value in (("length", length), ("layers", layers), ("heads", heads), ("vocabulary", vocabulary)):
            require(value >= 1, f"{name} must be at least 1, got {value}")
        require(width >= 1 and width % heads == 0, f"width={width} must be a multiple of heads={heads}")
        require(lr > 0, f"lr must be positive, got {lr}")
        self.save_hyperparameters()
        self.length, self.lr, self.vocabulary = length, lr, vocabulary
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, F.gelu, batch_first=True, norm_first=True)
            for _ in range(layers)
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary)
        for embedding in (self.tokens, self.places):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits [N, T, vocabulary] of the token after each of tokens int64 [N, T], T at most `length`.

        Raises:
            ValueError: for longer texts.
        """
        require(tokens.shape[1] <= self.length, f"texts of {tokens.shape[1]} tokens, and the model sees {self.length}")
        count = tokens.shape[1]
        hidden = self.tokens(tokens) + self.places.weight[:count]
        mask = nn.Transformer.generate_square_subsequent_mask(count, hidden.device, hidden.dtype)
        for layer in self.layers:
            hidden = layer(hidden, mask, is_causal=True)
        logits: Tensor = self.head(self.norm(hidden))
        return logits

    def losses(self, windows: Tensor) -> Tensor:
        """The mean cross entropy [N] of windows int64 [N, T + 1], in nats a character."""
        logits = self(windows[:, :-1])
        return F.cross_entropy(logits.transpose(1, 2), windows[:, 1:], reduction="none").mean(1)

    def training_step(self, batch: Sequence[Tensor], batch_idx: int) -> Tensor:
        """One iteration on (windows int64 [N, T + 1], labels); the labels are not used."""
        loss = self.losses(batch[0]).mean()
        self.log("loss", loss, on_step=False, on_epoch=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam."""
        return torch.optim.Adam(self.parameters(), lr=self.lr)

    @torch.no_grad()
    def example_losses(
        self, windows: Tensor, labels: Tensor | None = None, seed: int = 0, batch_size: int = 500
    ) -> Tensor:
        """The losses [N] of windows int64 [N, T + 1], in nats a character; labels are unused, nothing is drawn."""
        require_batch_size(batch_size)
        with evaluating(self):
            return torch.cat([self.losses(part.to(self.device)) for part in windows.split(batch_size)])

    @torch.no_grad()
    def predictions(self, windows: Tensor, labels: Tensor | None = None, seed: int = 0) -> tuple[Tensor, Tensor]:
        """Return logits [N, T, vocabulary] and tokens [N, T] of windows, for `torchmetrics.text.Perplexity`."""
        given = windows.to(self.device)
        with evaluating(self):
            return self(given[:, :-1]), given[:, 1:]

    @torch.no_grad()
    def write(
        self, length: int, prompt: str = "\n", temperature: float = 1.0, generator: torch.Generator | None = None
    ) -> str:
        """Write on after a prompt, at most `length` tokens further; the prompt is left out.

        Args:
            length: of what it writes.
            prompt: not empty; of it the model sees the last tokens that fit.
            temperature: by which logits are divided; 0 takes the likeliest token.
            generator: a CPU generator; the global one by default.

        Raises:
            ValueError: for a value out of range.
        """
        require(length >= 1 and prompt != "", f"length={length} and prompt={prompt!r}: give at least one of either")
        require(temperature >= 0, f"temperature must not be negative, got {temperature}")
        text = encode(prompt)
        with evaluating(self):
            for _ in range(length):
                logits = self(text[None, -self.length :].to(self.device))[0, -1].cpu()
                if temperature:
                    token = (logits / temperature).softmax(0).multinomial(1, generator=generator)
                else:
                    token = logits.argmax(keepdim=True)
                text = torch.cat([text, token])
        return decode(text[-length:])
