"""Differentially private federated averaging (McMahan et al. 2018, "Learning Differentially Private Recurrent Language
Models", arXiv 1710.06963): a client's update is clipped and the sum of updates gets normal noise."""

import math
from collections.abc import Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

import torch
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from torch import Tensor

from fedgen.clients.samplers.sampler import sample_cohort
from fedgen.federated.aggregators.mean import Aggregator, Federation, wide
from fedgen.federated.server_optimizers import as_real, from_real
from fedgen.io.field_types import Fits, fault
from fedgen.io.files import read_json, write_json
from fedgen.io.tensor_files import HASH, is_whole, with_hash
from fedgen.ranks import Ranks
from fedgen.seeds import generator
from fedgen.statistics.accounting import federated_epsilon, require_accountants
from fedgen.statistics.private import secure_normal

RELEASES = "releases.json"  # in the run folder


class Participations:
    """Counts for each client the rounds that drew it and whose sum was released, a round done again as often as it was.

    Cohorts are those of `sample_cohort`. A client that was drawn and left out counts too.

    Args:
        clients: of which each round draws.
        cohort: so many.
        seed: of the draws.

    Attributes:
        rounds: every round before it has been counted.
        times: releases of each client, in order.
    """

    def __init__(self, clients: int, cohort: int, seed: int) -> None:
        self._cohort, self._seed = cohort, seed
        self.rounds, self.times = 0, [0] * clients

    @property
    def most(self) -> int:
        """The largest number of releases that any client has taken part in."""
        return max(self.times)

    def reach(self, rounds: int) -> None:
        """Counts each round before `rounds` that has not been counted, once."""
        while self.rounds < rounds:
            self._draw(self.rounds)
            self.rounds += 1

    def add(self, round: int) -> None:
        """Counts a release of a round, also where it has been counted; so are rounds before it that have not been."""
        again = round < self.rounds
        self.reach(round + 1)
        if again:
            self._draw(round)

    def _draw(self, round: int) -> None:
        for client in sample_cohort(len(self.times), self._cohort, self._seed, round):
            self.times[client] += 1

    def save(self, folder: Path, noise_multiplier: float) -> None:
        """Writes the counts into a run folder, on disk before it returns."""
        state = {"noise_multiplier": noise_multiplier, "rounds": self.rounds, "times": self.times}
        # a digit that became another would make epsilon too small
        write_json(folder / RELEASES, with_hash({}, state))

    def load(self, folder: Path, noise_multiplier: float) -> None:
        """Goes on from the counts of a run folder, if it has any."""
        path = folder / RELEASES
        if not path.exists():
            return
        found = _read(path)
        here = (len(self.times), noise_multiplier)
        if (there := (len(found["times"]), found["noise_multiplier"])) != here:
            raise ValueError(
                f"{path} counts releases of {there[0]} clients with noise {there[1]:g}, and this run has {here[0]} and"
                f" noise {here[1]:g}: choose another folder; where clients are the same, its epsilon comes on top"
            )
        self.rounds, self.times = found["rounds"], found["times"]


class _Counts(TypedDict):
    noise_multiplier: Annotated[Real, Fits(math.isfinite, "finite number")]
    rounds: int
    times: list[int]


def _read(path: Path) -> dict[str, Any]:
    try:
        found = read_json(path)
        counts = {name: value for name, value in found.items() if name != HASH} if isinstance(found, dict) else found
        if wrong := fault(counts, _Counts):
            raise ValueError(f"it {wrong}")
        if not is_whole({}, found):
            raise ValueError("it holds other counts than were written")
    except ValueError as error:
        raise ValueError(
            f"{path} is damaged ({error}), and without it nobody knows what this run has released: begin another run,"
            " whose epsilon comes on top"
        ) from error
    return counts


class PrivateMean(Aggregator):
    """server + (sum of clipped updates + N(0, (noise_multiplier max_norm)^2)) / cohort, with its privacy logged.

    What is protected is a client as a whole: at "epsilon" and "delta", logged every round, what the server publishes
    says no more about any client's data than if they were replaced by any others. All tensors that travel count as one
    vector. Clients weigh equally, and the divisor is the size of the cohort even where a client is left out. Replacing
    a client moves the sum by twice `max_norm`. Cohorts are a function of seed and round, so they are no secret, and
    epsilon is that of the client drawn most often so far, of as many releases, by dp-accounting. What is measured on
    clients, such as scores, or labels' frequencies for a conditional model, is not counted, nor what rounding to the
    tensors' type does to noise.

    Secret noise is drawn anew for every sum, from the system's secure source. A round done again (from an older
    checkpoint, or after a kill) is therefore another release, and counts as one, whether or not the updates are the
    same: the run folder's `releases.json` is on disk before a sum gets its noise, so that after a kill it may count one
    release too many and never too few. No key to the noise is kept, which would take it off, and which two different
    sums of one round must not share: their difference would show the client that only one of them has. Rounds that
    this file does not know, as of a checkpoint from elsewhere, count once each, where the checkpoint says that they had
    this noise and such cohorts, and else end the run; so does a checkpoint that says of rounds which the file knows
    that they had other noise, or none: it is not of them. Seeded rounds repeat themselves.

    Args:
        max_norm: the longest update allowed.
        noise_multiplier: standard deviation of the noise over `max_norm`; 0 clips alone, with epsilon infinite.
        delta: well below one over the number of clients.
        noise: "seeded" draws it from (seed, round), for simulations that can be repeated and that protect nobody from
            who knows the seed; "secret" from the system's secure source.

    Attributes:
        clipped: the clients of the last round whose update was too long.

    Raises:
        ModuleNotFoundError: without dp-accounting, naming the extra that brings it.
        ValueError: for numbers out of range; when a round begins, for a `releases.json` that is damaged, or not of this
            run.
        MisconfigurationException: when a round begins, for rounds before it of which nobody knows that they had this
            noise and such cohorts.

    Examples:
        >>> import torch
        >>> from fedgen.federated import PrivateMean
        >>> rule = PrivateMean(max_norm=1.0, noise_multiplier=0.0)  # clips alone
        >>> rule.start([torch.zeros(1)])
        >>> rule.add(0, [torch.tensor([100.0])], weight=1)
        >>> rule.clipped
        [0]
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
        self.max_norm, self.delta, self.noise = max_norm, delta, noise
        self.noise_multiplier = float(noise_multiplier)  # checkpoints hold plain types, and this may be one of NumPy
        self.clipped: list[int] = []
        self._counts: Participations | None = None
        self._server: list[Tensor] = []
        self._sums: list[Tensor] = []
        self._is_noisy = False
        self._past: Any = None  # what is said of the rounds before, as a checkpoint of them holds it

    def state_dict(self) -> Any:
        return self._past

    def load_state_dict(self, state: Any) -> None:
        self._past, self._counts = state, None

    def begin_round(self, federation: Federation) -> None:
        before, now = self.federation._replace(round=0), federation._replace(round=0)
        went_back = self._counts is not None and federation.round < self._counts.rounds
        if before != now or (self.noise == "seeded" and went_back):
            self._counts = None
        super().begin_round(federation)
        drawn = {name: int(getattr(federation, name)) for name in ("seed", "clients", "cohort")}
        own = {"noise_multiplier": self.noise_multiplier, "noise": self.noise, **drawn}
        self._check_past(own, self._participations().rounds)  # refuses a file that is damaged or not of this run, too
        self._past = own

    def _check_past(self, own: Mapping[str, Any], known: int) -> None:
        """Refuses, before any turn, rounds that are not known to have had this noise, or of which others are told."""
        is_known = known >= self.federation.round
        asked = ("noise_multiplier", "noise") if is_known else own
        told = self._past if isinstance(self._past, Mapping) else {}
        fits = all(name in told and told[name] == own[name] for name in asked)
        if self.federation.round == 0 or fits or (is_known and self._past is None):
            return
        raise MisconfigurationException(
            f"epsilon would count rounds {0 if is_known else known} to {self.federation.round - 1} as if they had been"
            f" trained with {own}, and the checkpoint says {self._past}: go on as before, or begin another run from its"
            " weights"
        )

    def start(self, server: Sequence[Tensor]) -> None:
        self._server, self.clipped, self._is_noisy = list(server), [], False
        self._sums = [torch.zeros_like(as_real(wide(t)), requires_grad=False) for t in server]

    @torch.no_grad()
    def add(self, client: int, update: Sequence[Tensor], weight: float) -> None:
        if weight != 1:
            raise MisconfigurationException(
                "PrivateMean bounds what one client adds, so clients weigh equally: pass client_weights='uniform'"
            )
        pairs = zip(update, self._server, strict=True)
        moved = [as_real(wide(new) - wide(old)).double() for new, old in pairs]  # in whose range every factor is exact
        norm = float(torch.stack([part.norm() for part in moved]).norm()) if moved else 0.0
        if norm > self.max_norm:
            self.clipped.append(client)
        scale = min(1.0, self.max_norm / norm) if norm > 0 else 1.0
        for total, part in zip(self._sums, moved):
            total.add_(part.mul_(scale))

    @torch.no_grad()
    def grow(self, server: Sequence[Tensor], places: Sequence[int]) -> None:
        for place, tensor in zip(places, server):
            self._server.insert(place, tensor)
            self._sums.insert(place, torch.zeros_like(as_real(wide(tensor)), requires_grad=False))

    @torch.no_grad()
    def merge(self, ranks: Ranks, device: torch.device) -> None:
        if ranks.size > 1:
            if ranks.rank == 0:  # one rank's noise, so that it counts once
                self._add_noise()
            self._is_noisy = True
            self._counts = ranks.gather(self._counts)[0]  # rank 0 has the file
            self.clipped = sorted(client for clients in ranks.gather(self.clipped) for client in clients)
            self._sums = ranks.add(self._sums, device)

    def _add_noise(self) -> None:
        found = self.federation
        if self.noise == "secret":
            counts = self._participations()
            counts.load(found.folder, self.noise_multiplier)  # a run that was thought dead may go on in the folder
            counts.add(found.round)
            counts.save(found.folder, self.noise_multiplier)
        draws = generator(found.seed, "private mean", found.round)
        for total in self._sums if self.noise_multiplier > 0 else ():
            if self.noise == "secret":
                noise = secure_normal(total.numel()).view(total.shape)
            else:
                noise = torch.randn(total.shape, generator=draws, dtype=torch.float64)
            total.add_((noise * (self.noise_multiplier * self.max_norm)).to(total))
        self._is_noisy = True

    @torch.no_grad()
    def result(self) -> list[Tensor]:
        if not self._is_noisy:
            self._add_noise()
        sums = [from_real(numbers, like=tensor) for tensor, numbers in zip(self._server, self._sums)]
        return [wide(old) + total / self.federation.cohort for old, total in zip(self._server, sums)]

    def metrics(self, rounds: int) -> dict[str, float]:
        """ "epsilon" and "delta" after so many rounds, epsilon infinite without noise.

        Also "clipped", the share of the cohort whose updates were too long, where noise is seeded: it has no noise, so
        beside a secret one, which is to protect somebody, it is not told.
        """
        counts = self._participations()
        counts.reach(rounds)
        found = {"epsilon": federated_epsilon(self.noise_multiplier, counts.most, self.delta), "delta": self.delta}
        return found if self.noise == "secret" else {**found, "clipped": len(self.clipped) / self.federation.cohort}

    def _participations(self) -> Participations:
        if self._counts is None:
            found = self.federation
            self._counts = Participations(found.clients, found.cohort, found.seed)
            if self.noise == "secret":
                self._counts.load(found.folder, self.noise_multiplier)
        return self._counts
