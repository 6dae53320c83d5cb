"""Differentially private federated averaging (McMahan et al. 2018, "Learning Differentially Private Recurrent Language
Models", arXiv 1710.06963): a client's update is clipped and the sum of updates gets normal noise."""

from collections.abc import Sequence
from typing import Literal

import torch
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from torch import Tensor

from fedgen.federated.aggregators import Aggregator, wide
from fedgen.ranks import Ranks
from fedgen.seeds import generator
from fedgen.statistics.accounting import federated_epsilon, require_accountants


class PrivateMean(Aggregator):
    """server + (sum of clipped updates + N(0, (noise_multiplier max_norm)^2)) / cohort, with its privacy logged.

    What is protected is a client as a whole: at "epsilon" and "delta", logged every round, what the server publishes
    says no more about any client's data than if they were replaced by any others. All tensors that travel count as one
    vector. Clients weigh equally, and the divisor is the size of the cohort even where a client is left out. Cohorts
    drawn from many clients cost less: the accountant (RDP of Google's dp-accounting, the extra `privacy`) takes them as
    fixed-size samples without replacement, and replacing a client moves the sum by twice `max_norm`. What is measured
    on clients, such as scores, is not counted.

    Args:
        max_norm: the longest update allowed.
        noise_multiplier: standard deviation of the noise over `max_norm`; 0 clips alone, with epsilon infinite.
        delta: well below one over the number of clients.
        noise: "seeded" draws it from (seed, round), for simulations that can be repeated and that protect nobody from
            who knows the seed; "secret" from a seed that the system's random source gives.

    Attributes:
        clipped: the clients of the last round whose update was too long.

    Raises:
        ValueError: for numbers out of range.
        ModuleNotFoundError: if dp-accounting is missing, naming the extra that brings it.
    """

    private = True

    def __init__(
        self,
        max_norm: float,
        noise_multiplier: float,
        delta: float = 1e-5,
        noise: Literal["seeded", "secret"] = "seeded",
    ) -> None:
        if not 0 < max_norm < float("inf") or not 0 <= noise_multiplier < float("inf"):
            raise ValueError(
                f"max_norm={max_norm} and noise_multiplier={noise_multiplier}: an update's longest norm is positive,"
                " and the noise a finite multiple of it from 0"
            )
        if not 0 < delta < 1:
            raise ValueError(f"delta={delta} lies in (0, 1), well below one over the number of clients")
        if noise not in ("seeded", "secret"):
            raise ValueError(f"noise={noise!r}: choose 'seeded' or 'secret'")
        require_accountants()
        self.max_norm, self.noise_multiplier, self.delta, self.noise = max_norm, noise_multiplier, delta, noise
        self.clipped: list[int] = []
        self._spent: dict[tuple[int, int, int], float] = {}
        self._server: list[Tensor] = []
        self._sums: list[Tensor] = []
        self._is_noisy = False

    def start(self, server: Sequence[Tensor]) -> None:
        self._server, self.clipped, self._is_noisy = list(server), [], False
        self._sums = [torch.zeros_like(t, dtype=wide(t).dtype, requires_grad=False) for t in server]

    @torch.no_grad()
    def add(self, client: int, update: Sequence[Tensor], weight: float) -> None:
        if weight != 1:
            raise MisconfigurationException(
                "PrivateMean bounds what one client adds, so clients weigh equally: pass client_weights='uniform'"
            )
        moved = [wide(new) - wide(old) for new, old in zip(update, self._server, strict=True)]
        norm = float(torch.stack([part.double().norm() for part in moved]).norm()) if moved else 0.0
        if norm > self.max_norm:
            self.clipped.append(client)
        scale = min(1.0, self.max_norm / norm) if norm > 0 else 1.0
        for total, part in zip(self._sums, moved):
            total.add_(part, alpha=scale)

    @torch.no_grad()
    def merge(self, ranks: Ranks, device: torch.device) -> None:
        if ranks.size > 1:
            if ranks.rank == 0:  # one rank's noise, so that it counts once
                self._add_noise()
            self._is_noisy = True
            self.clipped = sorted(client for clients in ranks.gather(self.clipped) for client in clients)
            self._sums = ranks.add(self._sums, device)

    def _add_noise(self) -> None:
        draws = self._draws()
        for total in self._sums if self.noise_multiplier > 0 else ():
            noise = torch.randn(total.shape, generator=draws, dtype=torch.float64)
            total.add_((noise * (self.noise_multiplier * self.max_norm)).to(total))
        self._is_noisy = True

    @torch.no_grad()
    def result(self) -> list[Tensor]:
        if not self._is_noisy:
            self._add_noise()
        return [wide(old) + total / self.federation.cohort for old, total in zip(self._server, self._sums)]

    def metrics(self, rounds: int) -> dict[str, float]:
        """ "epsilon" and "delta" after so many rounds, infinity without noise, and the share that was clipped."""
        found = self.federation
        key = (rounds, found.clients, found.cohort)
        if key not in self._spent:
            self._spent[key] = federated_epsilon(self.noise_multiplier, rounds, found.clients, found.cohort, self.delta)
        return {"epsilon": self._spent[key], "delta": self.delta, "clipped": len(self.clipped) / found.cohort}

    def _draws(self) -> torch.Generator:
        if self.noise == "seeded":
            return generator(self.federation.seed, "private mean", self.federation.round)
        found = torch.Generator()
        found.seed()  # from the system's random source
        return found
