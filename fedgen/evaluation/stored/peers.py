"""One generated set against one reference, as torch-fidelity and clean-fid score two folders.

torch-fidelity: `fidelity --input1 GENERATED --input2 REFERENCE --fid --kid`; clean-fid: `fid.compute_fid(...)`.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
from rich.markup import escape
from rich.table import Table
from torch import Tensor

from fedgen.embeddings.names import CLEAN, CLIP_NAMES, DINOV2_DIMS, INCEPTION
from fedgen.evaluation.marks import explained, marked, say_directions
from fedgen.evaluation.names import SUBSET_SIZE, Peer
from fedgen.evaluation.records import ScoreRecord, say_error, say_number
from fedgen.evaluation.stored.stored_evaluation import StoredEvaluation, StoredOptions
from fedgen.evaluation.stored.stored_sets import FITTED, Named
from fedgen.evaluation.tables.table import VALUE_WIDTH, best_first, client_value, new_table, say_value
from fedgen.progress import track
from fedgen.scores import resolve_weights
from fedgen.scores.kernel.mmd import subset_values

FIXED_WIDTH = 40  # characters of a client's name, images and weight, borders included
SHOWN = 30  # clients; of more, the ends of the order are shown
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
        reference: in one of the same forms.
        preset: "torch-fidelity" (fid, and kid over its random subsets) or "clean-fid" (fid; its kid is unseeded).
        embedding: a name or a name with options, as for `load_embedding`; that of the files, else Inception, if None.
        weights: a local file of the weights of `embedding`, or of the Inception, which is downloaded otherwise.
        options: all other options.
        subset_size: images of each of torch-fidelity's 100 subsets.
    """

    has_clients = False

    def __init__(
        self,
        generated: str | Path,
        reference: str | Path,
        preset: Peer = "torch-fidelity",
        embedding: Named | None = None,
        weights: str | Path | None = None,
        options: StoredOptions | None = None,
        subset_size: int = SUBSET_SIZE,
    ) -> None:
        if preset not in get_args(Peer):
            raise ValueError(f"preset must be one of {', '.join(get_args(Peer))}, got {preset!r}")
        if subset_size < 2:
            raise ValueError(f"subsets need at least 2 images, got {subset_size}")
        self.preset, self.subset_size = preset, subset_size
        options, clean = options or StoredOptions(), preset == CLEAN
        below = options.reading.recursive or clean  # clean-fid looks into subfolders in any case
        reading = replace(options.reading, upright=False, mixed_sizes=clean, recursive=below)
        default = f"{INCEPTION}-{CLEAN}" if clean else INCEPTION
        embedding = default if embedding == INCEPTION else embedding
        if clean and embedding is not None and not str(embedding).endswith(CLEAN):
            raise ValueError(f"preset clean-fid is for {INCEPTION} with its own resize, not for {embedding}")
        options = replace(options, reading=reading, split="reference")
        super().__init__(generated, [reference], embedding, weights, options, default)
        self._images = [stored.images for stored in self.sets if stored.images]

    @property
    def is_the_peers(self) -> bool:
        """Whether the peer reads the same files and embeds alike, so that its fid is this one."""
        name, theirs = self.identity.name, f"{INCEPTION}-{CLEAN}"
        is_clean = self.preset == CLEAN
        same = name == theirs if is_clean else name.startswith(EXTRACTORS) and not name.endswith(CLEAN)
        known = not any(stored.images is None and stored.says_nothing for stored in self.sets)
        alike = not any(part.deep or part.suffixes - SUFFIXES[self.preset] for part in self._images)
        return same and known and alike and FITTED not in self.identity.resize

    def describe_clients(self, counts: Sequence[float | None]) -> str:
        number = "an unknown number of" if counts[0] is None else f"{counts[0]:.12g}"
        return f"{self.sets[1].path}, {number} images"

    def remarks(self) -> list[str]:
        """Return the remarks of `StoredEvaluation`, with the files that the peer reads otherwise."""
        notes = super().remarks()
        if any(part.deep for part in self._images):
            notes.append(f"{self.preset} would clip grey images of more than 8 bits at 255; here they are rescaled")
        unread = set().union(*(part.suffixes for part in self._images)) - SUFFIXES[self.preset]
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
        kid = [record for record in records if record.score == "kid" and self.has_subsets]
        return [*records, *map(self._over_subsets, kid)]

    def _over_subsets(self, kid: ScoreRecord) -> ScoreRecord:
        generated, reference = self.values()
        assert isinstance(generated, Tensor)  # kid has features
        assert isinstance(reference, Tensor)
        draws = subset_values(generated, reference, None, SUBSETS, self.subset_size, SUBSET_SEED)
        values = list(track(draws, "kid over subsets", SUBSETS, "subsets"))
        how = f"mean over {SUBSETS} random subsets of {self.subset_size} images, as in torch-fidelity"
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
    generated: str | Path, reference: str | Path, preset: Peer = "torch-fidelity", **options: Any
) -> list[ScoreRecord]:
    """The records of two stored sets as a peer scores them; arguments as for `PeerEvaluation`."""
    return PeerEvaluation(generated, reference, preset, **options).records()


def client_tables(evaluation: StoredEvaluation, records: Sequence[ScoreRecord], width: int = 80) -> list[Table]:
    """The scores of `client_table`, as many in each table as a terminal of a width can show with their errors."""
    shown = max(1, (width - FIXED_WIDTH) // VALUE_WIDTH)
    scores = list(dict.fromkeys(record.score for record in records))
    parts = [scores[start : start + shown] for start in range(0, len(scores), shown)]
    order = best_first(next(record for record in records if record.aggregate == "avg"))
    return [client_table(evaluation, [record for record in records if record.score in part], order) for part in parts]


def client_table(
    evaluation: StoredEvaluation, records: Sequence[ScoreRecord], order: Sequence[int] | None = None
) -> Table:
    """Clients, the best served by the first score on top, and the aggregates, by scores.

    Below avg and all, where they were computed: their standard errors if the clients stand for others.

    Args:
        evaluation: what was scored.
        records: its scores.
        order: of the clients, where it is that of another table.
    """
    _, *counts = evaluation.counts()
    shares = resolve_weights(evaluation.options.weights, [count or 1 for count in counts]).tolist()
    averages = [record for record in records if record.aggregate == "avg"]
    scores = [marked(record.score, [record]) for record in averages]
    table = new_table(_title(records[0]), ("client", "images", "weight", *scores), ("client",))
    caption = [f"{say_directions(averages)}, ± standard error", *_remarks(evaluation, averages), *explained(averages)]
    table.caption = escape("; ".join(caption))
    order = best_first(averages[0]) if order is None else order
    half = SHOWN // 2
    shown = [*order] if len(order) <= SHOWN else [*order[:half], None, *order[-half:]]
    for client in shown:
        if client is None:
            table.add_row(f"... {len(order) - SHOWN} more ...", *[""] * (2 + len(averages)), style="dim")
            continue
        images = "unknown" if counts[client] is None else f"{counts[client]:.12g}"
        cells = [client_value(record, client) for record in averages]
        table.add_row(escape(evaluation.client_names[client]), images, say_number(shares[client], digits=3), *cells)
    table.add_section()
    total = "" if None in counts else f"{sum(count or 0 for count in counts):.12g}"
    for aggregate in dict.fromkeys(record.aggregate for record in records):
        row = {record.score: record for record in records if record.aggregate == aggregate}
        found = [row.get(record.score) for record in averages]  # not every score has every aggregate
        cells = [say_value(record) if record else "" for record in found]
        main = aggregate in ("avg", "all")
        table.add_row(aggregate, total if aggregate == "all" else "", "", *cells, style="bold" if main else "")
        spread = [record.error_over_clients if record else None for record in found]
        if any(error is not None for error in spread):
            cells = ["" if error is None else f"±{say_error(error)}" for error in spread]
            table.add_row("  over clients", "", "", *cells, style="dim")
    return table


def _remarks(evaluation: StoredEvaluation, records: Sequence[ScoreRecord]) -> list[str]:
    of_sets, said = evaluation.remarks(), "; ".join(evaluation.remarks())
    parts = dict.fromkeys(part for record in records for part in record.note.split("; "))
    return [*of_sets, *(part for part in parts if part not in said and not part.startswith("generated: "))]


def peer_table(evaluation: PeerEvaluation, records: Sequence[ScoreRecord]) -> Table:
    """The scores against one reference, each with what it is of."""
    size = evaluation.subset_size
    table = new_table(_title(records[0]), ("score", "value", "±", "of"), ("score", "of"))
    for record in records:
        error = record.standard_error
        spread = "" if error is None else say_error(error)
        what = "all images; standard error" if error is not None else "all images"
        if record.score == KID_SUBSETS:
            spread = f"{record.terms['std over subsets']:.7g}"
            what = f"{SUBSETS} subsets of {size} images, as torch-fidelity draws them; deviation over them"
        elif record.score == "fid" and evaluation.is_the_peers:
            what = what.replace("all images", f"as {evaluation.preset} prints it")
        table.add_row(escape(marked(record.score, [record])), f"{record.value:.7g}", spread, what)
    remarks = [say_directions(records), *_remarks(evaluation, records), *explained(records)]
    if "kid" in evaluation.scores and evaluation.preset == "torch-fidelity" and not evaluation.has_subsets:
        remarks.append(
            f"torch-fidelity's kid needs {size} images per set, but the smaller has {evaluation.smaller}: only kid of"
            " all images is given (--kid_subset_size N sets smaller subsets)"
        )
    table.caption = escape("; ".join(remarks)) or None
    return table


def _title(record: ScoreRecord) -> str:
    made = f"{record.num_generated} generated images" if record.num_generated else "Generated images"
    return f"{made} against {record.reference}, embedding {record.embedding}"
