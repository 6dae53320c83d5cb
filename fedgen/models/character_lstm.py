"""A language model of whole texts, such as molecules in SMILES, as an ordinary LightningModule."""

from collections.abc import Sequence

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.nn import functional as F

from fedgen.data.text import VOCABULARY, decode_all
from fedgen.models.require import require
from fedgen.models.sampling import evaluating, require_batch_size


class CharacterLSTM(LightningModule):
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

    def losses(self, texts: Tensor) -> Tensor:
        """-log of the probability [N] of texts int64 [N, T], in nats, that of their end with them."""
        longest = int((texts != 0).sum(1).max())
        texts = texts[:, :longest]
        ended = F.pad(texts, (0, 1))
        logits, _ = self(F.pad(texts, (1, 0)))
        each = F.cross_entropy(logits.transpose(1, 2), ended, reduction="none")
        return (each * ((ended == 0).cumsum(1) <= 1)).sum(1)

    def training_step(self, batch: Sequence[Tensor], batch_idx: int) -> Tensor:
        """One iteration on (texts int64 [N, T], labels); the labels are not used."""
        loss = self.losses(batch[0]).mean()
        self.log("loss", loss, on_step=False, on_epoch=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam."""
        return torch.optim.Adam(self.parameters(), lr=self.lr)

    @torch.no_grad()
    def example_losses(
        self, texts: Tensor, labels: Tensor | None = None, seed: int = 0, batch_size: int = 500
    ) -> Tensor:
        """The losses [N] of texts int64 [N, T], in nats; labels are unused, nothing is drawn."""
        require_batch_size(batch_size)
        with evaluating(self):
            return torch.cat([self.losses(part.to(self.device)) for part in texts.split(batch_size)])

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
