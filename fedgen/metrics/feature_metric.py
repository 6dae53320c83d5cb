"""Metrics of features as torchmetrics classes: exact states on any device, correct merges, syncs and resets."""

import hashlib
import json
import operator
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn
from torchmetrics import Metric
from torchmetrics.utilities.distributed import gather_all_tensors

from fedgen.embeddings import Embedding, load_embedding
from fedgen.images import SeenRange, refuse_grey_levels
from fedgen.scores.aggregate import FederatedScore, Weights, aggregate, resolve_weights
from fedgen.statistics.gaussian import check_features

REAL, GENERATED = "real", "generated"
WITHOUT_FLOAT64 = ("mps",)  # kinds of device whose metrics keep their states on the CPU
DIGEST = 16  # bytes of a hash


class FeatureMetric(Metric):
    """A score of images or features, with states that do not follow a parent's precision."""

    higher_is_better = False
    is_differentiable = False
    full_state_update = False
    feature_network = "embedding"  # what torchmetrics.wrappers.FeatureShare shares

    def __init__(
        self,
        embedding: str | Mapping[str, Any] | nn.Module | None,
        dim: int | None,
        normalize: bool,
        reset_real_features: bool,
        *,
        made_with: Sequence[Any],
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.embedding = None if embedding is None else load_embedding(embedding)
        self.dim = _known_dim(self.embedding, dim)
        self._infers = self.dim is None
        self._quantises = self.embedding is not None and not self.embedding.takes_floats
        if normalize and not self._quantises:
            raise ValueError("normalize=True is for images; features and other floats are taken as they are")
        self.normalize = normalize
        self.reset_real_features = reset_real_features
        self._seen = {side: self._unseen(side) for side in (REAL, GENERATED)}
        fingerprint = self.embedding.fingerprint() if self.embedding else None
        given = [fingerprint, dim if self.embedding is None else None, *made_with]
        digest = hashlib.blake2b(json.dumps(given).encode(), digest_size=DIGEST).digest()
        # A state, so that a MetricCollection shares updates among equal metrics alone, and the first to be compared.
        row = torch.tensor([*digest, float(normalize), float(reset_real_features)], dtype=torch.float64)
        self.add_state("made_with", row, dist_reduce_fx=_the_same)

    @abstractmethod
    def _add(self, features: Tensor, side: str, rows: int | Tensor) -> None:
        """Adds features [N, D] to a side: those of one row (a client), or of row i for image i, int64 [N]."""

    def _sized(self, dim: int) -> dict[str, Tensor]:
        """The states whose size depends on the number of features D, for no images; of D = 0 while D is not known."""
        return {}

    def _join(self, parts: Sequence[Tensor] | Tensor) -> Tensor:
        """One sized state from those of several metrics, at least one."""
        raise NotImplementedError(f"{type(self).__name__} has no states of a size")

    def _add_sized(self, dim: int) -> None:
        for name, state in self._sized(dim).items():
            self.add_state(name, state.to(self.device), dist_reduce_fx=self._join)

    @abstractmethod
    def _dim_of(self, states: Mapping[str, Any]) -> int | None:
        """D of a metric's states; None if they have seen no images."""

    def _set_dim(self, dim: int) -> None:
        self.dim = dim
        self._add_sized(dim)

    def forward(self, *args: Any, **kwargs: Any) -> None:
        """Updates and returns None: a batch is of one side alone and has no score."""
        self.update(*args, **kwargs)

    def reset(self) -> None:
        """Forgets the generated images, and the real ones unless `reset_real_features` is False."""
        states = self._defaults
        kept = () if self.reset_real_features else tuple(name for name in states if name.startswith(REAL))
        self._defaults = {name: states[name] for name in states if name not in kept}
        try:
            super().reset()
        finally:
            self._defaults = states
        forgotten = (GENERATED, REAL) if self.reset_real_features else (GENERATED,)
        self._seen |= {side: self._unseen(side) for side in forgotten if not self._seen[side].told}

    def merge_state(self, incoming_state: dict[str, Any] | Metric) -> None:
        """Appends another metric's images, or those of its `metric_state`, to this metric's."""
        states = incoming_state.metric_state if isinstance(incoming_state, Metric) else incoming_state
        if not isinstance(states, Mapping) or set(states) != set(self._defaults):
            found = sorted(states) if isinstance(states, Mapping) else type(states).__name__
            raise ValueError(f"merge_state needs the states {sorted(self._defaults)}, got {found}")
        dim = self._dim_of(states) if self.dim is None else None
        mine = {name: getattr(self, name) for name in states} | (self._sized(dim) if dim else {})
        merged = {name: self._merged(name, mine[name], states[name]) for name in states}
        if dim:
            self._set_dim(dim)
        for name, value in merged.items():
            setattr(self, name, value)
        self._computed = None
        self._update_count += max(1, incoming_state.update_count if isinstance(incoming_state, Metric) else 1)

    def _merged(self, name: str, own: Any, other: Any) -> Any:
        if isinstance(own, list):
            parts = [other] if isinstance(other, Tensor) else other
            return [*own, *(part.to(self._list_device) for part in parts)]
        unseen = self._sized(0).get(name)
        shape = other.shape if isinstance(other, Tensor | np.ndarray) else ()
        if unseen is not None and shape == unseen.shape:
            return own  # it has seen no images, and does not know how many features they have
        if not isinstance(other, Tensor) or shape != own.shape:
            raise ValueError(f"state {name} must be {list(own.shape)}, got {list(shape)}")
        pair = [own, other.to(own)]
        return _the_same(pair) if name == "made_with" else self._join(pair)

    def sync(
        self,
        dist_sync_fn: Callable | None = None,
        process_group: Any = None,
        should_sync: bool = True,
        distributed_available: Callable | None = None,
    ) -> None:
        """Sync as torchmetrics does, with the number of features that some ranks may not have seen yet."""
        available = distributed_available or self.distributed_available_fn
        if self._infers and should_sync and not self._is_synced and callable(available) and available():
            gather = dist_sync_fn or self.dist_sync_fn or gather_all_tensors
            own = torch.tensor([self.dim or 0], device=self.device)
            found = {int(part) for part in gather(own, process_group or self.process_group)} - {0}
            if len(found) > 1:
                raise ValueError(f"ranks of {type(self).__name__} saw images of {sorted(found)} features; pass dim=D")
            if found and self.dim is None:
                self._set_dim(found.pop())
        super().sync(dist_sync_fn, process_group, should_sync, distributed_available)

    def set_dtype(self, dst_type: str | torch.dtype) -> Self:
        """The metric itself, unchanged: lower precision would change the score."""
        return self

    @contextmanager
    def sync_context(
        self,
        dist_sync_fn: Callable | None = None,
        process_group: Any = None,
        should_sync: bool = True,
        should_unsync: bool = True,
        distributed_available: Callable | None = None,
    ) -> Iterator[None]:
        """Sync as torchmetrics does, and restore a rank's own states even if `compute` raises."""
        self.sync(dist_sync_fn, process_group, should_sync, distributed_available)
        try:
            yield
        finally:
            self.unsync(should_unsync=self._is_synced and should_unsync)

    def plot(self, val: Any = None, ax: Any = None) -> Any:
        """Figure and axes with a result of `compute` (by default now), or a list of results over time."""
        val = self.compute() if val is None else val
        if isinstance(val, Sequence):
            return self._plot([_scalars(item) for item in val], ax)
        return self._plot(_scalars(val), ax)

    @property
    def _list_device(self) -> torch.device:
        return torch.device("cpu") if self.compute_on_cpu else self.device

    def _unseen(self, side: str) -> SeenRange:
        whose = f"{side} images of {type(self).__name__}"
        return SeenRange(whose, "pass images * 2 - 1, or uint8, or make the metric with normalize=True")

    def _features(self, inputs: Tensor, side: str) -> Tensor:
        """Features [N, D] of a side's images, or the features given; checked and without gradient."""
        features = inputs if self.embedding is None else self.embedding(self._images(inputs, side))
        check_features(features)
        if self.dim is None:
            self._set_dim(features.shape[1])
        if features.shape[1] != self.dim:
            raise ValueError(f"{type(self).__name__} has dim {self.dim}, got features {list(features.shape)}")
        return features.detach().to(self.device)

    def _images(self, images: Tensor, side: str) -> Tensor:
        """Images as the embedding takes them: unless normalised the same tensor, by which FeatureShare knows it."""
        if self.normalize:
            if not images.is_floating_point() or not ((images >= 0) & (images <= 1)).all():
                span = f"{images.dtype} from {images.min().item():g} to {images.max().item():g}"
                raise ValueError(f"normalize=True takes floats in [0, 1], got {span}")
            return (images * 255).to(torch.uint8)
        if self._quantises and images.is_floating_point():
            refuse_grey_levels(images)
            seen = self._seen[side]
            seen.see(images)
            if side == REAL:
                seen.refuse()
            else:
                seen.warn()  # no generator ends a training
        return images

    def _writable(self, name: str) -> Tensor:
        """A state that may be changed in place: one made under inference mode may not, once that is over."""
        state: Tensor = getattr(self, name)
        if state.is_inference() and not torch.is_inference_mode_enabled():
            state = state.clone()
            setattr(self, name, state)
        return state

    def _apply(self, fn: Callable[[Tensor], Tensor], exclude_state: Sequence[str] = "") -> Self:
        """Follows a parent to another device but keeps the states' precision."""
        target = fn(torch.empty(0, device=self.device)).device
        device = torch.device("cpu") if target.type in WITHOUT_FLOAT64 else target
        super()._apply(lambda tensor: tensor.to(device), exclude_state)
        if device != target and self.embedding is not None:
            self.embedding._apply(fn)
        return self


def require_images(owner: str, count: float, needed: int, how: str) -> None:
    """Raises ValueError, with the call that helps, if there are fewer images than a score needs."""
    if count < needed:
        raise ValueError(
            f"{owner}: {count:g} images seen, the score needs {needed}; call {how} before compute()"
            " (Lightning's sanity check computes after few batches: Trainer(num_sanity_val_steps=0))"
        )


def _known_dim(embedding: Embedding | None, dim: int | None) -> int | None:
    """D as it is given or as the embedding knows it; None if the first images tell."""
    known = None
    if embedding is not None:
        with suppress(RuntimeError):  # of one whose input decides
            known = embedding.dim
    if known is not None and dim is not None and dim != known:
        raise ValueError(f"dim is {dim}, but embedding {embedding.name if embedding else ''} gives {known} features")
    if dim is not None and dim < 1:
        raise ValueError(f"dim must be at least 1, got {dim}")
    return known or dim


def _the_same(rows: Sequence[Tensor] | Tensor) -> Tensor:
    """The first of several metrics' `made_with` [DIGEST + 2]."""
    if any(not torch.equal(row[:DIGEST], rows[0][:DIGEST]) for row in rows):
        raise ValueError("these metrics differ in embedding, number of features, clients or kind; make them alike")
    return rows[0]


def _scalars(value: Any) -> Any:
    return {key: v for key, v in value.items() if v.numel() == 1} if isinstance(value, dict) else value


class TwoSides(FeatureMetric):
    def update(self, images: Tensor, real: bool) -> None:
        """Adds images, or features [N, D] without an embedding, to the real or the generated side."""
        if len(images):
            side = REAL if real else GENERATED
            self._add(self._features(images, side), side, 0)


def require_sides(real: float, generated: float, needed: int) -> None:
    require_images("real", real, needed, "update(images, real=True)")
    require_images("generated", generated, needed, "update(images, real=False)")


Aggregate = str | float
EVERYTHING: tuple[Aggregate, ...] = ("avg", "all", "worst", "per_client")


class ManyClients(FeatureMetric):
    """`update(images, client)` and `compute()` for metrics of K clients; subclasses give the score."""

    def __init__(
        self,
        *settings: Any,
        num_clients: int,
        weights: Weights,
        aggregates: Aggregate | Sequence[Aggregate],
        **kwargs: Any,
    ) -> None:
        if num_clients < 1:
            raise ValueError(f"num_clients must be at least 1, got {num_clients}")
        single = isinstance(aggregates, str | int | float)
        names = (aggregates,) if isinstance(aggregates, str | int | float) else tuple(aggregates)
        if not names:
            raise ValueError(f"aggregate must name at least one of {EVERYTHING}")
        for name in names:
            if not (name in EVERYTHING if isinstance(name, str) else name >= 1):
                raise ValueError(f"aggregate must be among {EVERYTHING} or a power of at least 1, got {name!r}")
        resolve_weights(weights, [1.0] * num_clients)
        # The pool of all images needs no client's own.
        pooled = names == ("all",) and isinstance(weights, str) and weights == "examples"
        made_with = ("many clients", num_clients)
        super().__init__(*settings, rows=1 if pooled else num_clients, made_with=made_with, **kwargs)
        self.num_clients = num_clients
        self.weights = weights if isinstance(weights, str) else torch.as_tensor(weights).tolist()
        self._names, self._single, self._pooled = names, single, pooled

    @abstractmethod
    def _score(self) -> tuple[FederatedScore, Tensor]:
        """The score of the images seen and the clients' weights; of a pooled metric, the pool is the only client."""

    def update(self, images: Tensor, client: int | Tensor | None) -> None:
        """Adds images, or features [N, D] without an embedding."""
        rows = 0 if client is None else _clients(client, len(images), self.num_clients)
        if len(images):
            side = GENERATED if client is None else REAL
            self._add(self._features(images, side), side, 0 if self._pooled else rows)

    def compute(self) -> Tensor | dict[str, Tensor]:
        """The aggregate asked for as a float64 scalar (per_client: [K]); or a dict such as {"fid_avg", "fid_all"}."""
        score, shares = self._score()
        found = {}
        for name in self._names:
            key = f"{score.name}_{name}" if isinstance(name, str) else f"{score.name}_power_{name:g}"
            found[key] = _named(score, shares, name).to(self.device)
        return next(iter(found.values())) if self._single else found

    def _require_images(self, counts: Sequence[float], generated: float, needed: int) -> None:
        """Raises ValueError unless each client (or the pool) and the generated side have the images needed."""
        for number, count in enumerate(counts):
            owner, how = ("all clients", "k") if self._pooled else (f"client {number}", str(number))
            require_images(owner, count, needed, f"update(images, client={how})")
        require_images("generated", generated, needed, "update(images, client=None)")


def _named(score: FederatedScore, shares: Tensor, name: Aggregate) -> Tensor:
    if name == "per_client":
        return score.per_client
    value = score.values["all"] if name == "all" else aggregate(score.per_client, shares, name)
    return torch.tensor(value, dtype=torch.float64)


def _clients(client: int | Tensor, images: int, num_clients: int) -> int | Tensor:
    """One client's number, or those of each image as int64 [N]; ValueError for clients that do not exist."""
    if isinstance(client, Tensor) and client.ndim > 0:
        if client.shape != (images,) or client.dtype == torch.bool or client.is_floating_point():
            given = f"{client.dtype} {list(client.shape)}"
            raise ValueError(f"client needs one whole number an image, [{images}], got {given}")
        found: int | Tensor = client.long()
        numbers = client.tolist()
    else:
        if isinstance(client, bool) or not hasattr(client, "__index__"):
            raise ValueError(f"client is a whole number, int64 [N], or None for generated images, got {client!r}")
        found = operator.index(client)
        numbers = [found]
    outside = [number for number in numbers if not 0 <= number < num_clients]
    if outside:
        raise ValueError(f"client {outside[0]} is none of 0 ... {num_clients - 1}; generated images: client=None")
    return found
