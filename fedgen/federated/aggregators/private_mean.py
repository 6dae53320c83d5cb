"""Differentially private federated averaging, and counts of the releases that a client has been part of."""

import math
from collections.abc import Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import torch
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from torch import Tensor

from fedgen.clients.samplers.sampler import sample_cohort
from fedgen.federated.aggregators.mean import Federation, SumOfUpdates
from fedgen.io.field_types import Fits, fault
from fedgen.io.files import read_json, write_json
from fedgen.io.tensor_files import is_whole, with_hash
from fedgen.ranks import Ranks
from fedgen.seeds import generator
from fedgen.statistics.private import federated_epsilon, require_accountants, secure_normal

RELEASES = "releases.json"  # in the run folder
Noise = Literal["seeded", "secret"]


class Participations:
    """Counts for each client the rounds that drew it and whose sum was released; a repeated round counts again."""

    def __init__(self, clients: int, cohort: int, seed: int) -> None:
        self._cohort, self._seed = cohort, seed
        self.rounds = 0  # all before it have been counted
        self.times = [0] * clients  # releases of each client

    @property
    def most(self) -> int:
        """The largest number of releases that any client has taken part in."""
        return max(self.times)

    def reach(self, rounds: int) -> None:
        """Count each round before `rounds` that has not been counted, once."""
        while self.rounds < rounds:
            self._draw(self.rounds)
            self.rounds += 1

    def add(self, round: int) -> None:
        """Count a release of a round, even if it has been counted, and rounds before it that have not been."""
        if round < self.rounds:
            self._draw(round)
        self.reach(round + 1)

    def _draw(self, round: int) -> None:
        for client in sample_cohort(len(self.times), self._cohort, self._seed, round):
            self.times[client] += 1

    def save(self, folder: Path, noise_multiplier: float) -> None:
        """Write the counts into a run folder, on disk before it returns."""
        state = {"noise_multiplier": noise_multiplier, "rounds": self.rounds, "times": self.times}
        # a digit that became another would make epsilon too small
        write_json(folder / RELEASES, with_hash({}, state))

    def load(self, folder: Path, noise_multiplier: float) -> None:
        """Go on from the counts of a run folder, if it has any."""
        path = folder / RELEASES
        if not path.exists():
            return
        try:
            found = read_json(path)
            if isinstance(found, dict) and not is_whole({}, found):
                raise ValueError("it holds other counts than were written")
            if wrong := fault(found, _Counts):
                raise ValueError(f"it {wrong}")
        except ValueError as error:
            raise ValueError(
                f"{path} is damaged ({error}), and what this run has released is not known without it: begin another"
                " run, whose epsilon comes on top"
            ) from error
        there, here = (len(found["times"]), found["noise_multiplier"]), (len(self.times), noise_multiplier)
        if there != here:
            raise ValueError(
                f"{path} counts releases of {there[0]} clients with noise {there[1]:g}, and this run has {here[0]} and"
                f" noise {here[1]:g}: choose another folder; where clients are the same, its epsilon comes on top"
            )
        self.rounds, self.times = found["rounds"], found["times"]


class _Counts(TypedDict):
    noise_multiplier: Annotated[Real, Fits(math.isfinite, "finite number")]
    rounds: int
    times: list[int]
    content_hash: NotRequired[Any]  # of before there were hashes there is none


class PrivateMean(SumOfUpdates):
    """server + (sum of clipped updates + N(0, (noise_multiplier max_norm)^2)) / cohort, with its privacy logged.

    McMahan et al. 2018, "Learning Differentially Private Recurrent Language Models" (arXiv 1710.06963). What is
    protected is a client as a whole: at "epsilon" and "delta", logged every round, what the server publishes says no
    more about any client's data than if they were replaced by any others. All tensors that travel count as one vector.
    Clients weigh equally, and the divisor is the size of the cohort even where a client is left out. Replacing a client
    moves the sum by twice `max_norm`. Cohorts are a function of seed and round, so they are not secret, and epsilon is
    that of the client drawn most often so far, of as many releases, by dp-accounting. It does not count what is
    measured on clients, such as scores or labels' frequencies, nor what rounding does to noise.

    Secret noise is drawn anew for every sum, from the system's secure source, and no key to it is kept. So a repeated
    round (from an older checkpoint, or after a kill) is another release and counts as one: the run folder's
    `releases.json` is on disk before a sum gets its noise, and may count one release too many and never too few. Rounds
    that it lacks count once each if the checkpoint says that they had this noise and such cohorts, and else end the
    run; so does a checkpoint in which rounds of the file had other noise, or none. Seeded rounds repeat themselves.

    Args:
        max_norm: the longest update allowed.
        noise_multiplier: standard deviation of the noise over `max_norm`; 0 clips alone, with epsilon infinite.
        delta: well below one over the number of clients.
        noise: "seeded" draws it from (seed, round), for simulations that can be repeated, without protection from those
            who know the seed; "secret" from the system's secure source.

    Attributes:
        clipped: the clients of the last round whose update was too long.

    Raises:
        ModuleNotFoundError: without dp-accounting, naming the extra that brings it.
        ValueError: for numbers out of range, or a `releases.json` that is damaged or not of this run.
        MisconfigurationException: for earlier rounds that are not known to have had this noise and such cohorts.

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

    def __init__(self, max_norm: float, noise_multiplier: float, delta: float = 1e-5, noise: Noise = "seeded") -> None:
        if not 0 < max_norm < float("inf") or not 0 <= noise_multiplier < float("inf"):
            raise ValueError(f"{max_norm=}, {noise_multiplier=}: choose a norm above 0 and noise from 0, both finite")
        if not 0 < delta < 1:
            raise ValueError(f"delta={delta} lies in (0, 1), well below one over the number of clients")
        if noise not in ("seeded", "secret"):
            raise ValueError(f"noise={noise!r}: choose 'seeded' or 'secret'")
        require_accountants()
        self.max_norm, self.delta, self.noise = max_norm, delta, noise
        self.noise_multiplier = float(noise_multiplier)  # checkpoints hold plain types, and this may be one of NumPy
        self.clipped: list[int] = []
        self._counts: Participations | None = None
        self._is_noisy = False
        self._past: Any = None  # the settings of the rounds before, as their checkpoint holds them

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
        """Refuse past rounds that are not known to have had this noise, or that had another by the checkpoint."""
        is_known = known >= self.federation.round
        asked = ("noise_multiplier", "noise") if is_known else own
        past = self._past if isinstance(self._past, Mapping) else {}
        fits = all(name in past and past[name] == own[name] for name in asked)
        if self.federation.round == 0 or fits or (is_known and self._past is None):
            return
        raise MisconfigurationException(
            f"epsilon would count rounds {0 if is_known else known} to {self.federation.round - 1} as if they had been"
            f" trained with {own}, and the checkpoint says {self._past}: go on as before, or begin another run from its"
            " weights"
        )

    def start(self, server: Sequence[Tensor]) -> None:
        super().start(server)
        self.clipped, self._is_noisy = [], False

    @torch.no_grad()
    def add(self, client: int, update: Sequence[Tensor], weight: float) -> None:
        if weight != 1:
            raise MisconfigurationException("clients of PrivateMean weigh equally: pass client_weights='uniform'")
        moved = [part.double() for part in self._moved(update)]  # in whose range every factor is exact
        norm = float(torch.stack([part.norm() for part in moved]).norm()) if moved else 0.0
        if norm > self.max_norm:
            self.clipped.append(client)
        scale = min(1.0, self.max_norm / norm) if norm > 0 else 1.0
        for total, part in zip(self._sums, moved):
            total.add_(part.mul_(scale))

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
        return self._plus_sums(self.federation.cohort)

    def metrics(self, rounds: int) -> dict[str, float]:
        """Return "epsilon", infinite without noise, "delta" and, beside seeded noise alone, the share "clipped"."""
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
