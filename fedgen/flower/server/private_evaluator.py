"""The scores of a federation whose clients' statistics have noise, for differential privacy: FID-all, and no other.

Each client gives the sums of its features once, clipped and with noise (`statistics.private`), and keeps them; the
server keeps their total in the run folder. Whatever is computed of it costs no more privacy, so it serves all
checkpoints, and a run that goes on asks nobody again. FID-avg and KID need more of single clients, and are not there.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from torch import Tensor

from fedgen.evaluation import ScoreRecord
from fedgen.evaluation.panels import Panel
from fedgen.evaluation.plan import EvaluationPlan
from fedgen.evaluation.real.splits import Split
from fedgen.evaluation.score_choice import ScoreChoice
from fedgen.flower.app.run_statistics import EPSILON
from fedgen.flower.client.client_statistics import meta_of
from fedgen.flower.client.released import keep_release, read_release, release_path
from fedgen.flower.secure_aggregation.secure_evaluator import check_images, hide_clients
from fedgen.flower.secure_aggregation.summed_reference import of_pool
from fedgen.flower.server.kept_answers import TOLD
from fedgen.flower.server.remote_data import RemoteClients
from fedgen.flower.server.remote_evaluator import Key, RemoteEvaluator, RemoteSide, item_of
from fedgen.flower.server.told_reference import ToldReference
from fedgen.flower.wire.messages import Item
from fedgen.flower.wire.ranges import Largest
from fedgen.scores import FederatedScore, FrechetReference
from fedgen.statistics import Gaussian, Privacy, add, private_gaussian
from fedgen.statistics.accounting import counted_epsilon
from fedgen.statistics.private import promise_of
from fedgen.statistics.statistic_messages import Message, MessageError

NOISE = 9  # standard deviations that an entry's noise may reach before it is cut off
ROUNDING = 1e-6  # by which two ways to count one epsilon may differ


class PrivateEvaluator(RemoteEvaluator):
    """A `RemoteEvaluator` that is told sums with noise.

    Args:
        data: names and numbers of the clients' images.
        folder: of the run, which keeps what was released.
        settings: as for `Evaluator`.

    Raises:
        ValueError: for scores that need more than the sums, released sums of another promise, noise that dp-accounting
            finds too little, or a run to which clients have told statistics without noise.
        ModuleNotFoundError: without dp-accounting, naming the extra that brings it.
    """

    def __init__(self, data: RemoteClients, folder: Path, **settings: Any) -> None:
        if (folder / TOLD).exists():
            raise ValueError(
                f"{folder / TOLD} has what clients told in this run without noise, so {EPSILON} in the run's config"
                " would promise what no longer holds: leave it out, or begin another run over other images"
            )
        self._folder, self._clients = folder, len(data.clients)
        super().__init__(data, **settings)
        hide_clients(self.plan, ("all",), f"{EPSILON} in the run's config hides")
        check_images(self.plan)
        p = self.privacy
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

    _side: "PrivateSide"

    @property
    def privacy(self) -> Privacy:
        """The promise."""
        return self._side.privacy

    def _make_side(self, data: RemoteClients, batch_size: int) -> "PrivateSide":
        for panel in self.panels:
            for choice in panel.choices:
                if choice.kind != "fid":
                    raise ValueError(
                        f"score {choice.name} asks clients for more than sums with noise, which {EPSILON} in the run's"
                        " config promises: leave it out of the recipe's evaluation; there is fid"
                    )
        assert data.transport is not None
        assert data.transport.statistics.privacy is not None
        sharers = self._clients if data.transport.hidden else 1
        privacy = replace(data.transport.statistics.privacy, releases=len(self.panels), sharers=sharers)
        return PrivateSide(self.plan, self.seed, data, batch_size, self.device, privacy, self._folder)

    def _told_counts(self, split: Split) -> Sequence[float]:
        """The number of all clients' images together: single clients are hidden."""
        return [sum(split.counts)]

    def _records(
        self, scores: Sequence[FederatedScore], panel: Panel, client_names: Sequence[str], details: Mapping[str, Any]
    ) -> list[ScoreRecord]:
        p = self.privacy
        own = {"epsilon": p.epsilon, "delta": p.delta, "radius": p.radius}
        said = f"statistics with noise: epsilon={p.epsilon:g}, delta={p.delta:g}"
        return [
            replace(
                record,
                note="; ".join(filter(None, [record.note, said])),
                score_settings={**record.score_settings, **own},
            )
            for record in super()._records(scores, panel, client_names, details)
        ]


class PrivateSide(RemoteSide):
    """The clients' side of FID-all, by sums with noise that are released once.

    Args:
        plan: the evaluation's.
        seed: as for `RealSide`.
        data: names and numbers of the clients' images, and the line to them.
        batch_size: as for `RealSide`.
        device: likewise.
        privacy: the promise.
        folder: of the run.
    """

    def __init__(
        self,
        plan: EvaluationPlan,
        seed: int,
        data: RemoteClients,
        batch_size: int,
        device: torch.device | str | None,
        privacy: Privacy,
        folder: Path,
    ) -> None:
        super().__init__(plan, seed, data, batch_size, device)
        self.privacy, self._folder = privacy, folder

    def prepare(self) -> None:
        if self._references:
            return
        places = self.places()
        items = {
            key: item_of("private-sums", *place)._replace(promise=promise_of(self.privacy))
            for key, place in places.items()
        }
        totals = {key: read_release(self._path(key), self._made(item)) for key, item in items.items()}
        missing = [key for key, total in totals.items() if total is None]
        for key, total in zip(missing, self._totals([items[key] for key in missing]), strict=True):
            keep_release(self._path(key), total)
            totals[key] = total
        self._references = {
            key: PrivateReference(self.plan, *places[key], private_gaussian(total, self.privacy))
            for key, total in totals.items()
            if total is not None
        }

    def ask_scores(self, features: Mapping[Key, Tensor]) -> None:
        """Asks nobody: all that clients tell they have told."""

    def look(self, features: Mapping[Key, Tensor]) -> None:
        """Notes nothing: the promise bounds what clients tell."""

    def _path(self, key: Key) -> Path:
        return release_path(self._folder, *key)

    def _made(self, item: Item) -> dict[str, str]:
        return {**meta_of(item), "privacy": item.promise}

    def _totals(self, items: Sequence[Item]) -> list[Message]:
        assert self._data.transport is not None
        if not self._data.transport.hidden:
            return [add(*told) for told in self._ask([((item.split, item.embedding), item) for item in items], {})]
        splits = {split.name: split for split in self.plan.splits}
        counts = [max(splits[item.split].counts) for item in items]
        bounds = [self._largest((item.split, item.embedding), item, most) for item, most in zip(items, counts)]
        return [one.total for one in self._data.add_up(items, {}, bounds)] if items else []

    def _largest(self, key: Key, item: Item, most: int) -> Largest:
        """Return the largest entries of a client's sums of at most so many clipped images, and of its share of the
        noise.
        """
        noise = NOISE * self.privacy.sigma / self.privacy.sharers**0.5
        radius = self.privacy.radius
        return {"count": most, "sum": most * radius + noise, "outer": most * radius**2 + noise, "clients": 1.0}


class PrivateReference(ToldReference):
    """Clients known by sums with noise. Of errors there is the part of generated images, which says nothing of noise.

    Args:
        plan: the evaluation's.
        split: of images elsewhere.
        panel: the embedding and its scores.
        pooled: what the sums say of the pool.

    Raises:
        MessageError: for sums over another number of images.
    """

    def __init__(self, plan: EvaluationPlan, split: Split, panel: Panel, pooled: Gaussian) -> None:
        super().__init__(plan, split, panel)
        if abs(pooled.count - sum(split.counts)) > 0.5:
            raise MessageError(f"the sums are of {pooled.count:g} images, clients have {sum(split.counts)}")
        self.pooled = pooled
        self._frechet = {ddof: FrechetReference.from_summaries([pooled], "examples", ddof) for ddof in self.divisors}

    def _of(self, choice: ScoreChoice, generated: Tensor | Gaussian, errors: bool) -> FederatedScore:
        return of_pool(self._frechet[choice.options["ddof"]].score(generated, errors))
