"""The clients' real images in every embedding, with stand-ins: what is computed once for all models."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fedgen.data.lazy_examples import LazyInputs, at_positions, in_parts
from fedgen.embeddings import Embedding, FeatureCache, NotFiniteError, embed
from fedgen.evaluation.panels import Panel
from fedgen.evaluation.plan import EvaluationPlan
from fedgen.evaluation.real.reference import FittedScores, Reference
from fedgen.evaluation.real.splits import Split, StandIn, name_clients
from fedgen.evaluation.records import ScoreRecord
from fedgen.scores import FederatedScore
from fedgen.seeds import subset


class RealSide:
    """The references of a plan's scores; embedded by `prepare`.

    Args:
        plan: what is measured.
        seed: of the stand-ins' images, where there are more than are asked for.
        cache: keeps features on disk.
        batch_size: images embedded at once.
        device: where to embed, and to train classifiers; where each embedding lies by default.
    """

    def __init__(
        self,
        plan: EvaluationPlan,
        seed: int,
        cache: FeatureCache | None = None,
        batch_size: int = 64,
        device: torch.device | str | None = None,
    ) -> None:
        self.plan, self.seed, self.cache, self.batch_size, self.device = plan, seed, cache, batch_size, device
        self._references: dict[tuple[str, str], FittedScores] = {}
        self._stand_ins: dict[tuple[str, str, str], tuple[Tensor | LazyInputs, Tensor | None]] = {}

    def prepare(self) -> None:
        """Embeds the clients' images of every split, and those of the stand-ins, once."""
        if self._references:
            return
        references: dict[tuple[str, str], FittedScores] = {}
        stand_ins: dict[tuple[str, str, str], tuple[Tensor | LazyInputs, Tensor | None]] = {}
        for panel in self.plan.panels:
            features = self._embed_real(panel)
            for split in self.plan.splits:
                key = split.name, panel.embedding.name
                if not self.plan.choices(split, panel):
                    continue
                references[key] = self._reference(split, panel, features)
                for name, stand_in in self._stand_ins_of(split, panel).items():
                    chosen = subset(len(stand_in.images), self.plan.num_images, self.seed, name, split.stream)
                    labels = None if stand_in.labels is None else stand_in.labels[chosen]
                    stand_ins[*key, name] = at_positions(features[id(stand_in.images)], chosen), labels
        self._references, self._stand_ins = references, stand_ins

    def _stand_ins_of(self, split: Split, panel: Panel) -> dict[str, StandIn]:
        """Return what is scored in a generator's place; nothing where the model is asked, which nothing can stand in
        for.
        """
        return {} if panel.on_model else self.plan.stand_ins(split)

    def _embed_real(self, panel: Panel) -> dict[int, Any]:
        """Features of all splits' images and stand-ins by the images' identity: those of one are often another's."""
        found: dict[int, Any] = {}
        for split in self.plan.splits:
            stand_ins = self._stand_ins_of(split, panel)
            others = [(one.images, f"{name} of {split.name}") for name, one in stand_ins.items()]
            for images, what in ((split.images, split.reference), *others):
                if panel.on_images:  # these scores compare the images themselves, or ask the model about anything
                    found[id(images)] = images  # those on disk are read as they are compared
                elif id(images) not in found:
                    try:
                        with name_clients(images, self.plan.splits):
                            found[id(images)] = self._embed(
                                panel.embedding, images, f"embedding {what} with", self.cache
                            )
                    except NotFiniteError as error:
                        client = f", client {split.client_of(error.place)!r}" if images is split.images else ""
                        raise ValueError(f"{what}{client}: {error}") from error
        return found

    def _reference(self, split: Split, panel: Panel, features: Mapping[int, Any]) -> Reference:
        plan, choices, counts = self.plan, self.plan.choices(split, panel), list(split.counts)
        parts = in_parts(features[id(split.images)], counts)
        other = plan.held_out if any(choice.needs == "held out" for choice in choices) else None
        held_out = features[id(other.images)].split(list(other.counts)) if other else None
        labels = None if split.labels is None else split.labels.split(counts)
        texts = panel.embedding.text_features if panel.embedding.takes_texts else None
        with name_clients(split.images, [split]):
            return Reference(parts, choices, plan.weights, plan.aggregates, held_out, labels, len(split.classes), texts)

    def reference(self, split: Split, panel: Panel) -> FittedScores | None:
        """The clients' side of a panel's scores on a split; None where none of them is measured there."""
        return self._references.get((split.name, panel.embedding.name))

    def score(self, split: Split, panel: Panel, features: Tensor, **options: Any) -> list[FederatedScore]:
        """The scores of generated features on a split; none where none of the panel's is measured there.

        Args:
            split: of the clients.
            panel: of the scores.
            features: as `embed` gives them.
            options: as for `Reference.score`.
        """
        reference = self.reference(split, panel)
        with name_clients(split.images, [split]):
            return reference.score(features, **options) if reference else []

    def told_counts(self, split: Split) -> Sequence[float]:
        """The numbers of images that records may tell: each client's."""
        return split.counts

    def described(self, record: ScoreRecord) -> ScoreRecord:
        """A record with how clients gave their side of it: as it is, since their images are here."""
        return record

    def stand_in(self, name: str, split: Split, panel: Panel) -> tuple[Tensor | LazyInputs, Tensor | None] | None:
        """Features of a stand-in's images, or those themselves, and their labels; None where it is not there."""
        return self._stand_ins.get((split.name, panel.embedding.name, name))

    def embed(self, panel: Panel, images: Tensor | LazyInputs) -> Tensor:
        """Features of images in a generator's place, or for a panel of image scores the images, on the device."""
        if panel.on_images:
            images = images[:]
            return images if self.device is None else images.to(self.device)
        return self._embed(panel.embedding, images, "embedding with", None)

    def _embed(
        self, embedding: Embedding, images: Tensor | LazyInputs, what: str, cache: FeatureCache | None
    ) -> Tensor:
        return embed(embedding, images, self.batch_size, self.device, f"{what} {embedding.name}", cache)
