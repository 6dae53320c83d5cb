"""Options of client entropy."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class EntropyOptions:
    """Options for fitting and reading a client's autoencoder.

    Args:
        steps: Adam steps on -ELBO. The paper takes 10,000 (`paper`), after which ten images are nearly memorised:
            writers and random clients differed by 1.4 nats after 1,000 steps, by 0.5 after 10,000.
        lr: learning rate.
        width: units in the one hidden layer of encoder and decoder.
        latent_dim: dimensions of a latent; 2 in the paper.
        batch_size: images per step; a client with fewer uses all at every step.
        samples: K in the estimate; 1000 in the paper.

    Raises:
        ValueError: for a number out of range.
    """

    steps: int = 1000
    lr: float = 1e-3
    width: int = 64
    latent_dim: int = 2
    batch_size: int = 32
    samples: int = 1000

    def __post_init__(self) -> None:
        for name in ("steps", "width", "latent_dim", "batch_size", "samples"):
            if getattr(self, name) < (0 if name == "steps" else 1):
                raise ValueError(f"{name}={getattr(self, name)} must be at least {0 if name == 'steps' else 1}")
        if not 0 < self.lr < math.inf:
            raise ValueError(f"lr={self.lr} must be above 0 and finite")

    @classmethod
    def paper(cls) -> "EntropyOptions":
        """The published settings: two latent numbers, 10,000 steps, 1,000 samples.

        Widths, optimizer, learning rate and batches, which the paper does not give, are this file's. It measures 100
        clients of a partition, as `with_entropy(..., max_clients=100)` does.
        """
        return cls(steps=10_000, latent_dim=2, samples=1000)


DEFAULT = EntropyOptions()
