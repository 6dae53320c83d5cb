"""The optimum that FID and KID pull a generator to when they are its loss, by the way in which clients are aggregated.

Trained on FID-all a generator has the pool's variance, on FID-avg less: that of a barycentre of the clients. KID's two
aggregates differ by a number of the real data alone and so have one gradient. First on the papers' Gaussian toy, where
the optima are known and KID-avg is the mean of what each client computes for itself; then on digits, as the second loss
of a federated GAN, where KID-all stands for both: one code gives their gradient. No client's data reach a FID loss:
moments do, their total for "all" and each client's for "avg". KID's loss needs the clients' points: it is simulated.
The quickstart's ten clients hold one class of digits each; all losses have a fixed weight.
"""

import itertools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from rich.table import Table
from torch import Tensor

from fedgen.embeddings import embed, load_embedding
from fedgen.evaluation import Columns, Run
from fedgen.evaluation.marks import SAME, mark_in, mark_of, say_marks
from fedgen.experiments.engine.arm_panels import REAL, ArmPanel, draw_panels, pairs_panel
from fedgen.experiments.engine.paired_seeds import change_of, mean_and_spread, verdict_on
from fedgen.experiments.engine.scored_checkpoints import client_images, generated_images
from fedgen.experiments.engine.study import Numbers, Study, expectation, make_table
from fedgen.experiments.engine.trainings import Arm, Training, component, embedded_loss, train_arms
from fedgen.experiments.paired.digits_fid_loss import LOSSES, DigitsChoice, compare, last_scores
from fedgen.experiments.theory import distributed_toy as toys
from fedgen.images import save_png, tile
from fedgen.losses import FastFIDLoss
from fedgen.statistics import Message, add, gaussian_from_message, gaussian_to_sums, message_size, pool, summarize

CONTROL = "without"
ARMS = (CONTROL, "fid_all", "fid_avg", "kid_all")
OPTIMISED, UNRELATED = "pixels", "efficientnet-lite0-32"
EMBEDDINGS = (UNRELATED, OPTIMISED)
SIZES = (64, 1280, 2048)  # features whose messages are weighed: of pixels, of EfficientNet-Lite0 and of Inception


@dataclass(frozen=True)
class DistributedChoice(DigitsChoice):
    """Options of distributed-fid-loss; its fields are options of the command.

    Args:
        recipe: of a federation on digits with `generator_losses`.
        seeds: runs of the toy and of each arm on digits.
        fid_weight: factor of FID beside the adversarial loss.
        kid_weight: factor of KID: its values are about 3 / D of the squared distance of means, FID's all of it.
        seed: of the first runs and of the images drawn; the others follow it.
        quick: a minute, to see that it runs; scored in pixels alone.
    """

    QUICK: ClassVar[Mapping[str, Any]] = {"seeds": 1, "rounds": 2, "parallel": lambda _: 2}
    LEAST: ClassVar[Mapping[str, float]] = {**DigitsChoice.LEAST, "seeds": 1}

    seeds: int = 3
    fid_weight: float = 10.0
    kid_weight: float = 200.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.fid_weight, self.kid_weight) <= 0:
            raise ValueError(
                f"fid_weight={self.fid_weight:g}, kid_weight={self.kid_weight:g}: a loss needs a positive weight"
            )

    @property
    def embeddings(self) -> tuple[str, ...]:
        return (OPTIMISED,) if self.quick else EMBEDDINGS


def trainings(study: Study, choice: DistributedChoice) -> dict[str, list[Training]]:
    common: dict[str, Any] = {}
    if choice.rounds is not None:
        options = {"every_n_rounds": choice.rounds, "num_images": 1000, "grid": 100}
        evaluation = component("fedgen.callbacks.FederatedEvaluation", embeddings=choice.embeddings, **options)
        common = {"trainer.max_epochs": choice.rounds, "trainer.callbacks": [evaluation]}
    return train_arms(study, "digits", choice, [Arm(name, {LOSSES: losses_of(name, choice)}) for name in ARMS], common)


def losses_of(arm: str, choice: DistributedChoice) -> list[dict[str, Any]] | None:
    if arm == CONTROL:
        return None
    score, aggregate = arm.split("_")
    if score == "kid":
        loss, weight = component("fedgen.losses.MMD2Loss", aggregate=aggregate), choice.kid_weight
    else:
        moments = component("fedgen.losses.EMAMoments", decay=0.9)
        loss = component("fedgen.losses.FastFIDLoss", moments=moments, aggregate=aggregate)
        weight = choice.fid_weight
    return embedded_loss(loss, [OPTIMISED], weight=weight)


def traces(images: Tensor, embeddings: Sequence[str]) -> dict[str, float]:
    """Trace of the images' covariance in each embedding."""
    return {name: float(summarize(_features(images, name)).trace()) for name in embeddings}


def real_traces(folder: Path, embeddings: Sequence[str]) -> dict[str, dict[str, float]]:
    """In each embedding the trace of the pool of the clients' training images, and the mean of the clients' own."""
    found, parts = {}, client_images(folder)
    for name in embeddings:
        summaries = [summarize(_features(part, name)) for part in parts]
        pooled = pool(summaries)
        within = sum(one.count * float(one.trace()) for one in summaries) / pooled.count
        found[name] = {"pool": float(pooled.trace()), "within": within}
    return found


def floors(folder: Path) -> dict[str, float]:
    """By column, what held-out real images score."""
    records = Run(folder).records
    names = Columns.of(records)
    return {names.name(record): record.value for record in records if record.is_floor}


def messages_against_images(folder: Path) -> dict[str, Any]:
    """Measure clients' messages for FID in "bytes" by D, and how far the loss from them is from that of images."""
    parts = [_features(part, OPTIMISED) for part in client_images(folder)]
    messages = [Message.from_bytes(gaussian_to_sums(summarize(part)).to_bytes(), "sums") for part in parts]
    found: dict[str, Any] = {"value": {}, "gradient": {}}
    batch = torch.cat([part[:4] for part in parts]).flip(1).double()  # any images that are not the clients'
    for aggregate, received in (("all", [add(*messages)]), ("avg", messages)):
        sides = [list(map(gaussian_from_message, received)), parts]
        results = [_value_and_gradient(aggregate, side, batch) for side in sides]
        found["value"][aggregate] = abs(results[0][0] / results[1][0] - 1)
        found["gradient"][aggregate] = float((results[0][1] - results[1][1]).norm() / results[1][1].norm())
    sizes = {dim: gaussian_to_sums(summarize(torch.zeros(2, dim))) for dim in SIZES}
    return found | {"bytes": {str(dim): message_size(message) for dim, message in sizes.items()}}


def _value_and_gradient(aggregate: Any, clients: Any, batch: Tensor) -> tuple[float, Tensor]:
    features = batch.clone().requires_grad_()
    value = FastFIDLoss(aggregate=aggregate).set_references(clients)(features)
    return float(value.detach()), torch.autograd.grad(value, features)[0]


def _features(images: Tensor, embedding: str) -> Tensor:
    return embed(load_embedding(embedding), images, description=f"embedding with {embedding}")


COLOURS = {CONTROL: "0.45", **toys.COLOURS}
MARKERS = {CONTROL: "s", "fid_all": "o", "fid_avg": "o", "kid_all": "^"}
FLOOR = "held-out real images"
SIDE = 6  # pictures of a grid's side


def name_of(arm: str) -> str:
    return "no loss" if arm == CONTROL else toys.name_of(arm)


STYLES = {
    **{name_of(arm): {"color": COLOURS[arm], "marker": MARKERS[arm], "linestyle": "none"} for arm in ARMS},
    FLOOR: {"color": "black", "marker": "*", "linestyle": "none"},
    "real pool": REAL,
    "a client's own": {**REAL, "linestyle": "--"},
}


def save_samples(images: Mapping[str, Tensor | Sequence[Tensor]], paths: Mapping[str, Path]) -> None:
    """Writes a grid of some images of each side; of several clients' images, of each client as many."""
    for name, path in paths.items():
        side = images[name]
        if not isinstance(side, Tensor):
            each = -(-SIDE * SIDE // len(side))
            side = torch.stack([part[:each] for part in side], dim=1).flatten(0, 1)
        save_png(path, tile(side[: SIDE * SIDE], SIDE, min_side=32))


def draw_digits(digits: Numbers, samples: Mapping[str, Path], path: Path) -> Path:
    """Above: FID-avg against FID-all where it was trained on and where not, the covariance's trace; below: images."""
    real = digits["real traces"][OPTIMISED]
    shares = {name_of(arm): [value / real["pool"] for value in digits["traces"][OPTIMISED][arm]] for arm in ARMS}
    traces = pairs_panel(
        shares,
        levels={"real pool": [1.0], "a client's own": [real["within"] / real["pool"]]},
        title=f"{OPTIMISED}, generated images",
        label="trace of the covariance / real pool's",
        bottom=0,
    )
    panels = [*(_against(digits, prefix, title) for prefix, title in _columns(digits).items()), traces]
    named = {arm: "real digits" if arm == "real" else name_of(arm) for arm in samples}
    pictures = [(file, named[arm], COLOURS.get(arm, "black")) for arm, file in samples.items()]
    return draw_panels([panels], STYLES, path, "", "FID-avg, or the loss", (3.6, 3.4), pictures)


def trained_prefix(digits: Numbers) -> str:
    """Return what stands before "fid_all" in the column of the images and the embedding that losses were trained on."""
    trained = (name for name, mark in digits["marks"].items() if mark == SAME and name.endswith("fid_all"))
    return next(trained).removesuffix("fid_all")


def _columns(digits: Numbers) -> dict[str, str]:
    """Prefix of the columns that are shown -> title: the embedding trained on, then another on held-out images."""
    found = {trained_prefix(digits): f"{OPTIMISED}, training images\n(trained on)"}
    if UNRELATED in digits["traces"]:
        found["report/"] = f"{UNRELATED},\nheld-out images"
    return found


def _against(digits: Numbers, prefix: str, title: str) -> ArmPanel:
    avg, pooled = (digits["scores"][f"{prefix}fid_{how}"] for how in ("avg", "all"))
    arms = {name_of(arm): {x: [y] for x, y in zip(avg[arm], pooled[arm])} for arm in ARMS}
    floor = digits["floor"]
    if f"{prefix}fid_all" in floor:
        arms[FLOOR] = {floor[f"{prefix}fid_avg"]: [floor[f"{prefix}fid_all"]]}
    return ArmPanel(arms, title=title, label="FID-all")


def digits_table(digits: Numbers) -> Table:
    """Scores and traces by what was trained on, mean and standard deviation over seeds."""
    seeds = len(next(iter(digits["scores"].values()))[CONTROL])
    rows: list[Sequence[str]] = []
    for column, row in digits["scores"].items():
        floor = f"{digits['floor'][column]:.3g}" if column in digits["floor"] else "-"
        name = f"{column} {digits['marks'][column]}".rstrip()
        rows.append((name, *(mean_and_spread(row[arm]) for arm in ARMS), floor))
    rows.append(())
    for embedding, row in digits["traces"].items():
        real = digits["real traces"][embedding]["pool"]
        cells = [mean_and_spread([value / real for value in row[arm]]) for arm in ARMS]
        within = digits["real traces"][embedding]["within"] / real
        name = f"trace, {embedding} {mark_in(embedding, [OPTIMISED], held_out=False)}".rstrip()
        rows.append((name, *cells, f"1 (a client: {within:.2f})"))
    note = "floor: held-out real images; trace: of the generated covariance, over that of the real pool"
    title = f"digits, last checkpoint, mean ± standard deviation of {seeds} seed(s); report: held-out images"
    headings = ("score", *map(name_of, ARMS), "floor")
    return make_table(title, headings, rows, [note, *say_marks(digits["marks"].values())])


def difference_table(digits: Numbers) -> Table:
    """Return what each loss changes on held-out images in embeddings that it was not trained on: paired differences."""
    against = digits["against no loss"]
    columns = [name for name, row in next(iter(against.values())).items() if name.startswith("report/")]
    shown = [name for name in columns if name in digits["scores"] and not digits["marks"][name]]
    rows = [(name_of(arm), *(change_of(found[name]) for name in shown)) for arm, found in against.items()]
    title = "held-out images, embeddings not trained on: change against no loss, 95 % interval over seeds"
    return make_table(title, ("trained on", *(name.removeprefix("report/") for name in shown)), rows)


def digits_outcomes(digits: Numbers) -> list[str]:
    lines = []
    prefix = trained_prefix(digits)
    for how in ("all", "avg"):
        between, within = apart(digits["scores"][f"{prefix}fid_{how}"])
        if within is not None:  # one seed says nothing of others
            text = (
                f"FID-all and FID-avg train other models: of one seed they are {between:.3g} apart in FID-{how}"
                f" on average, two seeds of one of them {within:.3g}"
            )
            lines.append(expectation(text, between > within))
    for how, other in (("all", "avg"), ("avg", "all")):
        row = digits["scores"][f"{prefix}fid_{how}"]
        text = f"FID-{how} in {OPTIMISED} is lower for the model trained on it than for FID-{other}'s"
        lines.append(verdict_on(text, (row[f"fid_{other}"], row[f"fid_{how}"]), "less"))
    column = f"{prefix}fid_avg"
    own, floor = digits["scores"][column]["fid_avg"], digits["floor"][column]
    reached = statistics.mean(own)
    text = f"trained on FID-avg, images have a lower one, {reached:.3g}, than held-out real ones, {floor:.3g}"
    lines.append(verdict_on(text, ([floor] * len(own), own), "less"))
    real, row = digits["real traces"][OPTIMISED], digits["traces"][OPTIMISED]
    pooled, single = ([value / real["pool"] for value in row[arm]] for arm in ("fid_all", "fid_avg"))
    text = (
        f"FID-avg leaves a lower trace of the generated covariance, {statistics.mean(single):.2f} of the pool's, than"
        f" FID-all, {statistics.mean(pooled):.2f} (within a client: {real['within'] / real['pool']:.2f})"
    )
    lines.append(verdict_on(text, (pooled, single), "less"))
    sent = digits["messages"]
    worst = max(max(sent[part].values()) for part in ("value", "gradient"))
    sizes = ", ".join(f"{size:,} at D = {dim}" for dim, size in sent["bytes"].items())
    text = f"FID's loss from the clients' messages ({sizes} bytes) is that from their images within {worst:.1e}"
    return [*lines, expectation(text, worst < toys.ROUNDING)]


def apart(row: Mapping[str, Sequence[float]]) -> tuple[float, float | None]:
    """Mean distances of a score: of FID-all's and FID-avg's models of one seed, and of two seeds of one, if any."""
    arms = row["fid_all"], row["fid_avg"]
    within = [abs(a - b) for values in arms for a, b in itertools.combinations(values, 2)]
    return statistics.mean(abs(a - b) for a, b in zip(*arms)), statistics.mean(within) if within else None


TOY = toys.ToySettings()
QUICK_TOY = toys.ToySettings(points=2000, kernel_points=500, batch=256, queue=1024, steps=200)
FIGURES = ("distributed_fid_toy.png", "distributed_fid_digits.png")
KID_AVG = (
    "KID-avg is not trained on digits: the loss has one gradient for it and KID-all, by the same code; that this is the"
    " mean of the clients' own is checked on the toy"
)


def distributed_fid_loss(**options: Any) -> None:
    """Trains the toy by four objectives and the digits' GAN by three of them and by none, and compares where they end.

    12 runs of two minutes, and three minutes for the toy.
    """
    choice = DistributedChoice(**options)
    study, toy_settings = choice.study("distributed-fid-loss"), QUICK_TOY if choice.quick else TOY
    toy = study.each(
        "toy", {f"seed {one}": one for one in choice.seeds_of}, lambda one: toys.train_toy(toy_settings, one)
    )
    runs = trainings(study, choice)
    digits = study.step("digits", lambda: measure(runs, choice))
    samples = {arm: study.path(f"samples-{arm}.png") for arm in (*ARMS, "real")}
    if not all(path.exists() for path in samples.values()):
        images = {arm: generated_images(own[0].folder, seed=choice.seed) for arm, own in runs.items()}
        save_samples(images | {"real": client_images(runs[CONTROL][0].folder)}, samples)
    tables: list[Table | str] = [toys.toy_table(toy), *toys.toy_outcomes(toy), digits_table(digits)]
    tables += [difference_table(digits)] if choice.seeds > 1 else []
    tables += [*digits_outcomes(digits), KID_AVG, f"figure: {toys.draw_toy(toy, study.path(FIGURES[0]))}"]
    study.report(tables, draw_digits(digits, samples, study.path(FIGURES[1])))


def measure(runs: Mapping[str, Sequence[Training]], choice: DistributedChoice) -> dict[str, Any]:
    """Measure what the digits' runs left, by column or embedding and arm, as numbers for `results.json`."""
    scored = {arm: [last_scores(run.folder, choice.rounds) for run in own] for arm, own in runs.items()}
    columns = [name for name in scored[CONTROL][0] if name.endswith(("_all", "_avg"))]
    found: dict[str, Any] = {
        "scores": {name: {arm: [run[name].value for run in own] for arm, own in scored.items()} for name in columns},
        "marks": {name: mark_of(scored["fid_all"][0][name]) for name in columns},
        "floor": floors(runs[CONTROL][0].folder),
        "real traces": real_traces(runs[CONTROL][0].folder, choice.embeddings),
        "messages": messages_against_images(runs[CONTROL][0].folder),
    }
    if len(scored[CONTROL]) > 1:
        found["against no loss"] = {arm: compare(scored[CONTROL], own) for arm, own in scored.items() if arm != CONTROL}
    measured = {
        arm: [traces(generated_images(run.folder, seed=choice.seed), choice.embeddings) for run in own]
        for arm, own in runs.items()
    }
    found["traces"] = {
        name: {arm: [run[name] for run in own] for arm, own in measured.items()} for name in choice.embeddings
    }
    return found
