"""Totals of sums to which clients add noise, for differential privacy: FID-all, and no other score.

Each client gives the sums of its features once, clipped and with noise (`statistics.private`), and keeps them; the
server keeps their total in the run folder. Whatever is computed of it costs no more privacy, so it serves all
checkpoints, and a run that goes on asks nobody again. FID-avg and KID need more of single clients, and are not there.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lightning.pytorch.utilities.rank_zero import rank_zero_info
from torch import Tensor

from fedgen.evaluation.plan import EvaluationPlan
from fedgen.flower.app.run_config import EPSILON
from fedgen.flower.client.client_statistics import meta_of
from fedgen.flower.client.pins import keep_release, read_release, release_path
from fedgen.flower.evaluation.answers_per_client import TOLD
from fedgen.flower.evaluation.client_answers import ClientAnswers, DimOf, Key, Scorer, Wanted, hide_clients, is_frechet
from fedgen.flower.evaluation.summed_answers import PooledScore, check_pool
from fedgen.flower.server.remote_data import RemoteClients
from fedgen.flower.wire.answer_forms import Largest
from fedgen.flower.wire.messages import Item
from fedgen.statistics import Gaussian, Privacy, add, private_gaussian
from fedgen.statistics.private import counted_epsilon, promise_of
from fedgen.statistics.statistic_messages import Message

NOISE = 9  # standard deviations that an entry's noise may reach before it is cut off
ROUNDING = 1e-6  # by which two ways to count one epsilon may differ


class NoisedAnswers(ClientAnswers):
    """Clients of whom sums with noise are told, once; ValueError for noise that dp-accounting finds too little."""

    # of errors there is the part of generated images, which says nothing of noise

    moments = "private-sums"

    def __init__(
        self, data: RemoteClients, privacy: Privacy, folder: Path, plan: EvaluationPlan, dim_of: DimOf
    ) -> None:
        super().__init__(plan, dim_of, data)
        for choice in (choice for panel in plan.panels for choice in panel.choices):
            if not is_frechet(choice):
                raise ValueError(
                    f"score {choice.name} asks clients for more than sums with noise, which {EPSILON} in the run's"
                    " config promises: leave it out of the recipe's evaluation; there is fid"
                )
        sharers = len(data.clients) if data.connection.hidden else 1
        self._privacy = replace(privacy, releases=len(plan.panels), sharers=sharers)
        self._folder, self._promise = folder, promise_of(self._privacy)
        hide_clients(plan, ("all",), f"{EPSILON} in the run's config hides")
        _check_epsilon(self._privacy)

    def look(self, features: Mapping[Key, Tensor]) -> None:
        """Notes nothing: the promise bounds what clients tell."""

    def remarks(self, place: Key, score: str) -> list[str]:
        return [f"statistics with noise: epsilon={self._privacy.epsilon:g}, delta={self._privacy.delta:g}"]

    @property
    def settings(self) -> dict[str, Any]:
        p = self._privacy
        return {"epsilon": p.epsilon, "delta": p.delta, "radius": p.radius}

    def _ask_once(self, asked: Sequence[Wanted], tensors: Mapping[str, Tensor]) -> list[Message]:
        """Return the totals that were released before, or else those of clients that are asked now, which are kept."""
        paths = {key: release_path(self._folder, *key) for key, _ in asked}
        totals = {key: read_release(paths[key], {**meta_of(item), "privacy": item.promise}) for key, item in asked}
        missing = [(key, item) for key, item in asked if totals[key] is None]
        for (key, _), total in zip(missing, self._totals(missing), strict=True):
            keep_release(paths[key], total)
            totals[key] = total
        return [total for total in totals.values() if total is not None]

    def _fit(self, key: Key, told: Message) -> tuple[Gaussian, dict[str, Scorer]]:
        pooled = check_pool(private_gaussian(told, self._privacy), self.places[key][0])

        def scorer(score: PooledScore) -> Scorer:
            return lambda _, generated, errors: score.score(generated, errors)

        scores = {choice.name: PooledScore(pooled, choice.definition.options["ddof"]) for choice in self._choices(key)}
        return pooled, {name: scorer(score) for name, score in scores.items()}

    def _totals(self, asked: Sequence[Wanted]) -> list[Message]:
        if not self._data.connection.hidden:
            return [add(*told) for told in self._ask_each(asked, {})]
        bounds = [self._largest(key, item, max(self.places[key][0].counts)) for key, item in asked]
        return [one.total for one in self._data.add_up([item for _, item in asked], {}, bounds)] if asked else []

    def _largest(self, key: Key, item: Item, most: int) -> Largest:
        """Return the largest entries of a client's sums of at most so many clipped images, and its share of noise."""
        noise = NOISE * self._privacy.sigma / self._privacy.sharers**0.5
        radius = self._privacy.radius
        return {"count": most, "sum": most * radius + noise, "outer": most * radius**2 + noise, "clients": 1.0}


def refuse_told(folder: Path) -> None:
    """Refuse, by a ValueError with the remedy, a run whose clients have told statistics without noise."""
    if (folder / TOLD).exists():
        raise ValueError(
            f"{folder / TOLD} has what clients told in this run without noise, so {EPSILON} in the run's config"
            " would promise what no longer holds: leave it out, or begin another run over other images"
        )


def _check_epsilon(privacy: Privacy) -> None:
    p = privacy
    spent = counted_epsilon(p.sigma / p.sensitivity, p.releases, p.delta)
    if spent > p.epsilon * (1 + ROUNDING):
        raise ValueError(
            f"the noise on clients' statistics spends epsilon={spent:g} as dp-accounting counts it, more than the"
            f" {p.epsilon:g} of {EPSILON} in the run's config: choose another epsilon or delta"
        )
    rank_zero_info(
        f"clients' statistics are released once, with noise: epsilon={spent:g}, delta={p.delta:g} for each image,"
        f" as dp-accounting counts them, features clipped at {p.radius:g}"
    )
