"""Language models over bytes as ordinary LightningModules: a transformer of windows, and an LSTM of whole texts."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.nn import functional as F

from fedgen.data.text import VOCABULARY, decode, decode_all, encode
from fedgen.models.require import require
from fedgen.models.sampling import evaluating, require_batch_size


class _CharacterModel(LightningModule, ABC):
    """A model of rows of bytes, each of which has a loss, trained by Adam on their mean."""

    lr: float

    @abstractmethod
    def losses(self, windows: Tensor) -> Tensor:
        """The losses [N] of windows, or whole texts, int64 [N, T], in nats."""

    def training_step(self, batch: Sequence[Tensor], batch_idx: int) -> Tensor:
        """One iteration on (windows or whole texts int64 [N, T], labels); the labels are not used."""
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
        """The losses [N] of windows, or whole texts, int64 [N, T]; labels are unused, nothing is drawn."""
        require_batch_size(batch_size)
        with evaluating(self):
            return torch.cat([self.losses(part.to(self.device)) for part in windows.split(batch_size)])


class CharacterTransformer(_CharacterModel):
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


class CharacterLSTM(_CharacterModel):
    """An LSTM that writes texts byte by byte and ends them itself: CharRNN of MOSES (Segler et al. 2018), by Adam.

    Data are texts as rows of bytes with zeros at the end; a zero is also what the model reads first and writes last.
    The loss of a text is -log of its probability, in nats. A round's mean is logged as "loss".

    Args:
        width: of the LSTM's state.
        layers: of the LSTM.
        embedding: numbers that a byte becomes.
        lr: learning rate of Adam.
        longest: bytes that `sample` writes at most; a text that has not ended then is cut.

    Raises:
        ValueError: for a value out of range.

    Examples:
        >>> import torch
        >>> from fedgen.models import CharacterLSTM
        >>> texts = CharacterLSTM(width=8, longest=5).sample(3, torch.Generator().manual_seed(0))
        >>> len(texts), max(map(len, texts)) <= 5
        (3, True)
    """

    def __init__(
        self, width: int = 256, layers: int = 1, embedding: int = 48, lr: float = 3e-3, longest: int = 100
    ) -> None:
        super().__init__()
        for name, value in (("width", width), ("layers", layers), ("embedding", embedding), ("longest", longest)):
            require(value >= 1, f"{name} must be at least 1, got {value}")
        require(lr > 0, f"lr must be positive, got {lr}")
        self.save_hyperparameters()
        self.lr, self.longest = lr, longest
        self.tokens = nn.Embedding(VOCABULARY, embedding)
        self.lstm = nn.LSTM(embedding, width, layers, batch_first=True)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(
        self, tokens: Tensor, state: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Return logits [N, T, 256] of the byte after each of tokens int64 [N, T], and the LSTM's state after them."""
        hidden, state = self.lstm(self.tokens(tokens), state)
        return self.head(hidden), state

    def losses(self, windows: Tensor) -> Tensor:
        """-log of the probability [N] of whole texts int64 [N, T], in nats, that of their end with them."""
        texts = windows[:, : int((windows != 0).sum(1).max())]
        ended = F.pad(texts, (0, 1))
        logits, _ = self(F.pad(texts, (1, 0)))
        each = F.cross_entropy(logits.transpose(1, 2), ended, reduction="none")
        return (each * ((ended == 0).cumsum(1) <= 1)).sum(1)

    @torch.no_grad()
    def sample(self, num_texts: int, generator: torch.Generator | None = None) -> list[str]:
        """Write texts, all at once; a CPU generator draws them, or torch's global one."""
        token = torch.zeros(num_texts, 1, dtype=torch.int64)
        written: list[Tensor] = []
        state = None
        with evaluating(self):
            for _ in range(self.longest):
                logits, state = self(token.to(self.device), state)
                drawn = logits[:, -1].cpu().softmax(1).multinomial(1, generator=generator)
                token = drawn * (token != 0) if written else drawn  # nothing is written after an end
                if not token.any():
                    break
                written.append(token)
        return decode_all(torch.cat(written, 1) if written else token)
