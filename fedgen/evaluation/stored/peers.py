"""One generated set against one reference, as torch-fidelity and clean-fid score two folders.

torch-fidelity: `fidelity --input1 GENERATED --input2 REFERENCE --fid --kid`; clean-fid: `fid.compute_fid(...)`.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
from torch import Tensor

from fedgen.embeddings.names import CLEAN, CLIP_NAMES, DINOV2_DIMS, INCEPTION
from fedgen.evaluation.preset_names import SUBSET_SIZE
from fedgen.evaluation.preset_names import Peer as Preset
from fedgen.evaluation.records import ScoreRecord
from fedgen.evaluation.stored.stored_embedding import FITTED, Named
from fedgen.evaluation.stored.stored_evaluation import StoredEvaluation, StoredOptions
from fedgen.evaluation.stored.stored_images import Images
from fedgen.progress import track
from fedgen.scores.kernel.mmd import subset_values

SUBSETS, SUBSET_SEED = 100, 2020  # torch-fidelity's
KID_SUBSETS = "kid_subsets"
# of the files that a peer looks for in a folder
_FEW = {".png", ".jpg", ".jpeg"}
SUFFIXES = {"torch-fidelity": _FEW, CLEAN: _FEW | {".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}}
EXTRACTORS = (INCEPTION, "vgg16", *CLIP_NAMES, *DINOV2_DIMS)  # torch-fidelity's


class PeerEvaluation(StoredEvaluation):
    """A generated set against one reference, read and embedded as a peer does, so that the numbers are the peer's.

    Images are not turned by their EXIF tag, since the peers do not. Under "clean-fid" sizes may be mixed, and images in
    subfolders count.

    Args:
        generated: a folder of images, or an .npz or .npy file of images, features or statistics.
        reference: likewise.
        preset: "torch-fidelity" (fid, and kid over its random subsets) or "clean-fid" (fid; its kid is unseeded).
        embedding: a name or a name with options, as for `load_embedding`; that of the files, else Inception, if None.
        weights: a local file of the weights of `embedding`, or of the Inception, which is downloaded otherwise.
        options: all else.
        subset_size: images of each of torch-fidelity's 100 subsets.
    """

    has_clients = False

    def __init__(
        self,
        generated: str | Path,
        reference: str | Path,
        preset: Preset = "torch-fidelity",
        embedding: Named | None = None,
        weights: str | Path | None = None,
        options: StoredOptions | None = None,
        subset_size: int = SUBSET_SIZE,
    ) -> None:
        if preset not in get_args(Preset):
            raise ValueError(f"preset must be one of {', '.join(get_args(Preset))}, got {preset!r}")
        if subset_size < 2:
            raise ValueError(f"subsets need at least 2 images, got {subset_size}")
        self.preset, self.subset_size = preset, subset_size
        options = options or StoredOptions()
        clean = preset == CLEAN  # looks into subfolders in any case
        reading = replace(
            options.reading, upright=False, mixed_sizes=clean, recursive=options.reading.recursive or clean
        )
        options = replace(options, reading=reading, split="reference")
        if preset == CLEAN and embedding == INCEPTION:
            embedding = f"{INCEPTION}-{CLEAN}"
        if preset == CLEAN and embedding is not None and not str(embedding).endswith(CLEAN):
            raise ValueError(f"preset clean-fid is for {INCEPTION} with its own resize, not for {embedding}")
        default = f"{INCEPTION}-{CLEAN}" if preset == CLEAN else INCEPTION
        super().__init__(generated, [reference], embedding, weights, options, default)

    @property
    def is_the_peers(self) -> bool:
        """Whether the peer reads the same files and embeds alike, so that its fid is this one."""
        name = self.identity.name
        if self.preset == CLEAN:
            same = name == f"{INCEPTION}-{CLEAN}"
        else:
            same = name.startswith(EXTRACTORS) and not name.endswith(CLEAN)
        told = not any(stored.images is None and stored.says_nothing for stored in self.sets)
        alike = not any(part.deep or part.suffixes - SUFFIXES[self.preset] for part in self._images())
        return same and told and alike and FITTED not in self.identity.resize

    def _images(self) -> list[Images]:
        return [stored.images for stored in self.sets if stored.images]

    def describe_clients(self, counts: Sequence[float | None]) -> str:
        """The reference in words."""
        number = "an unknown number of" if counts[0] is None else f"{counts[0]:.12g}"
        return f"{self.sets[1].path}, {number} images"

    def remarks(self) -> list[str]:
        """Return the remarks of `StoredEvaluation`, with the files that the peer reads otherwise."""
        notes = super().remarks()
        if any(part.deep for part in self._images()):
            notes.append(f"{self.preset} would clip grey images of more than 8 bits at 255; here they are rescaled")
        unread = set().union(*(part.suffixes for part in self._images())) - SUFFIXES[self.preset]
        if unread:
            notes.append(f"{self.preset} would leave out the files ending in {', '.join(sorted(unread))}")
        return notes

    @property
    def has_subsets(self) -> bool:
        """Whether kid is scored over subsets, too: both sets have as many images as a subset."""
        asked = any(choice.name == "kid" and not choice.settings for choice in self.choices)
        return asked and self.preset != CLEAN and self.subset_size <= self.smaller

    @property
    def smaller(self) -> int:
        """The number of images of the smaller set, 0 where one does not say."""
        return int(min(count or 0 for count in self.counts()))

    def records(self) -> list[ScoreRecord]:
        """The scores against the reference (aggregate all), and kid over subsets as "kid_subsets"."""
        records = [record for record in super().records() if record.aggregate == "all"]
        if self.has_subsets:
            kid = next(record for record in records if record.score == "kid")
            records.append(self._over_subsets(kid))
        return records

    def _over_subsets(self, kid: ScoreRecord) -> ScoreRecord:
        generated, reference = self.values()
        assert isinstance(generated, Tensor)  # kid has features
        assert isinstance(reference, Tensor)
        draws = subset_values(generated, reference, None, SUBSETS, self.subset_size, SUBSET_SEED)
        values = list(track(draws, "kid over subsets", SUBSETS, "subsets"))
        how = f"mean over {SUBSETS} random subsets of {self.subset_size} images, drawn as torch-fidelity"
        return replace(
            kid,
            score=KID_SUBSETS,
            value=float(np.mean(values)),
            standard_error=None,
            error_parts={},
            terms={"std over subsets": float(np.std(values))},
            seed=SUBSET_SEED,
            note=f"{kid.note}; {how}",
        )


def score_reference(
    generated: str | Path, reference: str | Path, preset: Preset = "torch-fidelity", **options: Any
) -> list[ScoreRecord]:
    """The records of two stored sets as a peer scores them; arguments as for `PeerEvaluation`."""
    return PeerEvaluation(generated, reference, preset, **options).records()
