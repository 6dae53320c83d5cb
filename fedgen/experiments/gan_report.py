"""Tables of `fid_loss_gans`: what FID as a loss changes over paired seeds, and whether it was expected."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.table import Table

from fedgen.evaluation.marks import RELATED, SAME, say_marks
from fedgen.experiments.comparison import expectation
from fedgen.experiments.gan_arms import EMA, MINIBATCH, NETWORKS, WITHOUT, Bench
from fedgen.experiments.image_scores import SCORES
from fedgen.experiments.paired import paired_difference

Scores = Mapping[str, Mapping[str, Mapping[str, float]]]
"""key of a run -> embedding -> score -> value"""
Compared = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""key of an arm -> embedding -> score -> as `compare` gives it"""

HELD_OUT = "fid, held out"
HEADINGS = {"fid": "FID", HELD_OUT: "FID, held out", "recall": "recall", "coverage": "coverage", "trace": "trace"}
TRAINING = ("fid", "trace")  # are measured against the images that the loss has seen
BETTER: dict[str, Callable[[float], float]] = {  # of these less is better
    "recall": lambda value: -value,
    "coverage": lambda value: -value,
    "trace": lambda value: abs(value - 1),
}


def key_of(network: str, arm: str, seed: int | None = None) -> str:
    """What an arm, or a run of it, is called in results.json: "sngan, ema", "sngan, ema, seed 0"."""
    return f"{network}, {arm}" + ("" if seed is None else f", seed {seed}")


def name_of(arm: str) -> str:
    """What an arm is called."""
    return "EMA" if arm == EMA else arm


def compare(scores: Scores, network: str, arm: str, seeds: Sequence[int]) -> dict[str, dict[str, Any]]:
    """Embedding -> score -> "values" of an arm by seed.

    From two seeds on, for arms with a loss, also "difference" (with less without) and its "interval" (see
    `paired_difference`), and "improved": of how many seeds the score is better than without.
    """
    found: dict[str, dict[str, Any]] = {}
    for embedding in scores[key_of(network, arm, seeds[0])]:
        found[embedding] = {}
        for score in SCORES:
            control, own = (
                [scores[key_of(network, one, seed)][embedding][score] for seed in seeds] for one in (WITHOUT, arm)
            )
            row: dict[str, Any] = {"values": own}
            if arm != WITHOUT and len(seeds) > 1:
                row |= paired_difference(control, own)
                row["improved"] = sum(is_better(score, b, a) for a, b in zip(control, own))
            found[embedding][score] = row
    return found


def is_better(score: str, value: float, other: float) -> bool:
    """Whether one value of a score is better than another: less FID, more recall, a trace nearer to the data's."""
    badness = BETTER.get(score, lambda value: value)
    return badness(value) < badness(other)


def mean_of(compared: Compared, network: str, arm: str, embedding: str, score: str) -> float:
    """The mean of a score over seeds."""
    return statistics.mean(compared[key_of(network, arm)][embedding][score]["values"])


def mark_of(arm: str, score: str, embedding: str, bench: Bench) -> str:
    """The mark of a score in the embedding that an arm was trained on, as `fedgen.evaluation.marks` has them."""
    if arm == WITHOUT or embedding != bench.optimised:
        return ""
    return SAME if score in TRAINING else RELATED


def table_of(
    compared: Compared,
    floor: Mapping[str, Mapping[str, float]],
    bench: Bench,
    embedding: str,
    networks: Sequence[str],
    arms: Sequence[str],
) -> Table:
    """Scores in one embedding by network and arm: means, differences from the control, and real images beside."""
    count = len(compared[key_of(networks[0], arms[0])][embedding]["fid"]["values"])
    own = embedding == bench.optimised
    lines = [
        "FID: FID-all, to the images trained on and to held-out ones; recall and coverage: of held-out ones; trace: of"
        " the covariance, over that of the images trained on; real images: those trained on, as if generated",
    ]
    if count > 1:
        lines.append(
            "below means: the difference from without, how many seeds improved, the 95 % interval of the difference"
        )
    table = Table(
        title=f"{bench.title}, {embedding}, {'in which FID was a loss' if own else 'which no loss used'}: mean of"
        f" {count} seed{'s' * (count > 1)}",
        caption="\n".join([*lines, *say_marks({SAME, RELATED} if own else ())]),
        caption_justify="left",
    )
    table.add_column("network", no_wrap=True)
    table.add_column("FID as a loss", no_wrap=True)
    for score in SCORES:
        table.add_column(HEADINGS[score], justify="right")
    table.add_row("real images", "", *(f"{floor[embedding][score]:.3g}" for score in SCORES))
    for network in networks:
        table.add_section()
        for arm in arms:
            rows = compared[key_of(network, arm)][embedding]
            cells = (_cell(rows[score], mark_of(arm, score, embedding, bench)) for score in SCORES)
            table.add_row(NETWORKS[network].title if arm == arms[0] else "", name_of(arm), *cells)
    return table


def _cell(row: Mapping[str, Any], mark: str) -> str:
    mean = f"{statistics.mean(row['values']):.3g} {mark}".rstrip()
    if "interval" not in row:
        return mean
    low, high = row["interval"]
    return f"{mean}\n{row['difference']:+.2g}, {row['improved']}/{len(row['values'])}\n{low:+.2g} to {high:+.2g}"


def _change(row: Mapping[str, Any]) -> str:
    return "{:+.2g} ({:+.2g} to {:+.2g})".format(row["difference"], *row["interval"])


def outcomes(
    compared: Compared, bench: Bench, unrelated: str, networks: Sequence[str], arms: Sequence[str]
) -> list[str]:
    """What was expected of the arms with a loss and whether it was seen, beyond the interval of paired seeds."""
    lines = []
    for network in networks:
        title = NETWORKS[network].title
        forms = [arm for arm in arms if arm != WITHOUT]
        for arm in forms:
            rows = compared[key_of(network, arm)]
            own, other = rows[bench.optimised], rows[unrelated]
            text = (
                f"{title}, {name_of(arm)}: FID to held-out images falls in {unrelated}, which no loss used:"
                f" {_change(other[HELD_OUT])}; in {bench.optimised}, optimised: {_change(own[HELD_OUT])}"
            )
            lines.append(expectation(text, other[HELD_OUT]["interval"][1] < 0))
            text = (
                f"{title}, {name_of(arm)}: neither recall nor coverage falls beyond doubt in {unrelated}:"
                f" {_change(other['recall'])}, {_change(other['coverage'])}"
            )
            lines.append(expectation(text, min(other[score]["interval"][1] for score in ("recall", "coverage")) >= 0))
        lines += _traces(compared, bench, network, forms)
    return lines


def _traces(compared: Compared, bench: Bench, network: str, forms: Sequence[str]) -> list[str]:
    """What a batch's bias does to the spread of images, and a longer memory not."""
    if MINIBATCH not in forms:
        return []
    title, where = NETWORKS[network].title, bench.optimised
    traces = {arm: mean_of(compared, network, arm, where, "trace") for arm in forms}
    least = traces[MINIBATCH]
    text = f"{title}, minibatch: images spread less than the data: trace in {where} {least:.3g} of theirs"
    lines = [expectation(text, least < 1)]
    for arm in forms:
        if arm != MINIBATCH:
            text = f"{title}, {name_of(arm)}: nearer to the data's trace than minibatch: {traces[arm]:.3g}"
            lines.append(expectation(text, is_better("trace", traces[arm], least)))
    return lines


def pair_outcomes(compared: Compared, bench: Bench, unrelated: str, networks: Sequence[str], arm: str) -> list[str]:
    """Of one pair of each network: whether FID in the embedding that no loss used falls."""
    lines = []
    for network in networks:
        before, after = (mean_of(compared, network, one, unrelated, HELD_OUT) for one in (WITHOUT, arm))
        text = (
            f"{NETWORKS[network].title}, {name_of(arm)}, one pair on {bench.title}: FID to held-out images falls in"
            f" {unrelated}, which no loss used: {before:.3g} to {after:.3g}"
        )
        lines.append(expectation(text, after < before))
    return lines
