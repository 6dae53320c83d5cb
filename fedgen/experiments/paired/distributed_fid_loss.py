"""The optimum that FID and KID pull a generator to when they are its loss, by the way in which clients are aggregated.

Trained on FID-all a generator has the pool's variance, on FID-avg that of a barycentre of the clients; KID's aggregates
have one gradient. First a Gaussian generator x = mean + sd z over clients N((-1, 0), I) and N((+1, 0), I), where the
optima are known; then digits, as the second loss of a federated GAN, where KID-all stands for both. Clients send
moments for FID: their total for "all", each one's for "avg". KID needs their points: it is simulated.
"""

import itertools
import statistics
from collections.abc import Callable, Mapping, Sequence
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
from fedgen.experiments.paired.fid_loss_gans import LOSSES, DigitsChoice, compare, last_scores
from fedgen.experiments.theory.gaussian_fids import descend
from fedgen.experiments.theory.gaussian_toy import draw_clients
from fedgen.images import save_png, tile
from fedgen.losses import FastFIDLoss, MMD2Loss, QueueMoments
from fedgen.seeds import generator
from fedgen.statistics import Message, add, gaussian_from_message, gaussian_to_sums, message_size, pool, summarize

CONTROL = "without"
OBJECTIVES = ("fid_all", "fid_avg", "kid_all", "kid_avg")
COLOURS = {CONTROL: "0.45", "fid_all": "#1f5fa8", "fid_avg": "#c4560b", "kid_all": "#3a8a3a", "kid_avg": "#7a4fa0"}
LINES = {"fid_all": "-", "fid_avg": "-", "kid_all": "-", "kid_avg": (0, (4, 3))}  # KID's two lines are one
OPTIMA = {"fid_all": 2.0, "fid_avg": 1.0, "kid_all": 2.0, "kid_avg": 2.0}  # variance along x: `scores.theory`
TOLERANCE = 0.1  # of these, as clients are drawn
ROUNDING = 1e-6  # relative difference of values, or gradients, that rounding may make
START = (0.5, 0.5, 0.5, 0.5)  # mean x, mean y, sd x, sd y
SHOWN = 120  # points of a trajectory that are kept

Objective = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class ToySettings:
    points: int = 50_000  # of each client whose moments are sent
    kernel_points: int = 4000  # of each client that a kernel meets
    batch: int = 512  # generated points of a step
    queue: int = 4096  # generated points whose moments count; one batch alone would shrink the generator
    steps: int = 600  # of Adam, at a rate that falls to zero


def sent(points: Sequence[Tensor]) -> list[bytes]:
    """Messages of clients for FID: count, sum and sum of outer products."""
    return [gaussian_to_sums(summarize(part)).to_bytes() for part in points]


def frechet_objective(messages: Sequence[bytes], aggregate: str, queue: int) -> FastFIDLoss:
    """The server's FID loss, from messages: for "all" it looks at their sum alone."""
    received = [Message.from_bytes(message, "sums") for message in messages]
    known = [add(*received)] if aggregate == "all" else received
    loss = FastFIDLoss(QueueMoments(queue), "all" if aggregate == "all" else "avg")
    return loss.set_references([gaussian_from_message(message) for message in known])


def kernel_objective(points: Sequence[Tensor], aggregate: str) -> Objective:
    """KID to the pool, or the mean of the clients' own scores by their numbers of points, each computed by itself."""
    if aggregate == "all":
        return MMD2Loss(constant=False).set_references(list(points))
    singles = [MMD2Loss(constant=False).set_references([part]) for part in points]
    total = sum(map(len, points))

    def mean(generated: Tensor) -> Tensor:
        scores = [single(generated) * (len(part) / total) for single, part in zip(singles, points)]
        return torch.stack(scores).sum()

    return mean


def objectives(settings: ToySettings, seed: int) -> tuple[dict[str, Objective], int]:
    points = [part.double() for part in draw_clients(settings.points, seed).parts()]
    messages = sent(points)
    few = [part[: settings.kernel_points] for part in points]
    made: dict[str, Objective] = {f"fid_{a}": frechet_objective(messages, a, settings.queue) for a in ("all", "avg")}
    return made | {f"kid_{a}": kernel_objective(few, a) for a in ("all", "avg")}, len(messages[0])


def train_toy(settings: ToySettings, seed: int) -> dict[str, Any]:
    """The variance along x on the way by objective, the end's parameters (of the last tenth), and what was sent."""
    found, size = objectives(settings, seed)
    paths = {name: path_of(objective, settings, seed) for name, objective in found.items()}
    tail, every = max(1, settings.steps // 10), max(1, settings.steps // SHOWN)
    return {
        "steps": list(range(0, settings.steps + 1, every)),
        "variance": {name: path[::every, 2].tolist() for name, path in paths.items()},
        "end": {name: path[-tail:].mean(0).tolist() for name, path in paths.items()},
        "kid gradients": gradient_difference(found["kid_all"], found["kid_avg"], paths["kid_all"], settings, seed),
        "bytes": size,
    }


def path_of(objective: Objective, settings: ToySettings, seed: int) -> Tensor:
    """Means and variances [steps + 1, 4] on the way; the same noise for every objective."""
    parameters = torch.tensor(START, dtype=torch.float64)
    parameters[2:] = parameters[2:].log()
    parameters.requires_grad_()
    draws = generator(seed, "distributed-toy", "noise")

    def value() -> Tensor:
        noise = torch.randn(settings.batch, 2, generator=draws, dtype=torch.float64)
        return objective(parameters[:2] + parameters[2:].exp() * noise)

    later = (_moments(parameters) for _ in descend(parameters, settings.steps, value))
    return torch.stack([_moments(parameters), *later])


def gradient_difference(one: Objective, other: Objective, path: Tensor, settings: ToySettings, seed: int) -> float:
    """The largest relative difference of two objectives' gradients at ten generators of a path."""
    draws, worst = generator(seed, "distributed-toy", "gradients"), 0.0
    for moments in path[:: max(1, len(path) // 10)]:
        noise = torch.randn(settings.batch, 2, generator=draws, dtype=torch.float64)
        points = (moments[:2] + moments[2:].sqrt() * noise).requires_grad_()
        first, second = (torch.autograd.grad(objective(points), points)[0] for objective in (one, other))
        worst = max(worst, float((first - second).norm() / first.norm()))
    return worst


def _moments(parameters: Tensor) -> Tensor:
    mean, log_deviation = parameters.detach().split(2)
    return torch.cat([mean, (2 * log_deviation).exp()])


def name_of(arm: str) -> str:
    named = {CONTROL: "no loss", "real": "real digits"}
    return named.get(arm, arm.upper().replace("_ALL", "-all").replace("_AVG", "-avg"))


def toy_table(toy: Numbers) -> Table:
    reached = "optimum of the variance along x", "reached", "variance along y (1)", "mean x (0)", "y (0)"
    rows = []
    for name in OBJECTIVES:
        mean_x, mean_y, along_x, along_y = map(mean_and_spread, zip(*(run["end"][name] for run in toy.values())))
        rows.append((name_of(name), f"{OPTIMA[name]:g}", along_x, along_y, mean_x, mean_y))
    sent = next(iter(toy.values()))["bytes"]
    note = f"what a client sends for FID, once: {sent} bytes; for KID its points stand beside the generator"
    title = f"Gaussian toy, mean ± standard deviation of {len(toy)} seed(s)"
    return make_table(title, ("objective", *reached), rows, note)


def toy_outcomes(toy: Numbers) -> list[str]:
    reached = {name: statistics.mean(run["end"][name][2] for run in toy.values()) for name in OBJECTIVES}
    lines = [
        expectation(
            f"{name_of(name)} leads to the variance {reached[name]:.3f}, its optimum is {OPTIMA[name]:g}",
            abs(reached[name] - OPTIMA[name]) < TOLERANCE,
        )
        for name in OBJECTIVES
    ]
    worst = max(run["kid gradients"] for run in toy.values())
    text = f"the mean of the gradients of the clients' own KIDs is that of KID-all, within {worst:.1e}"
    return [*lines, expectation(text, worst < ROUNDING)]


def draw_toy(toy: Numbers, path: Path) -> Path:
    steps = next(iter(toy.values()))["steps"]
    ways = {name: zip(*(run["variance"][name] for run in toy.values())) for name in OBJECTIVES}
    arms = {name_of(name): dict(zip(steps, way)) for name, way in ways.items()}
    optima = {
        f"optimum of {', '.join(name_of(name) for name in OBJECTIVES if OPTIMA[name] == optimum)}": [optimum]
        for optimum in sorted(set(OPTIMA.values()))
    }
    panel = ArmPanel(arms, optima, label="variance of the generator along x", bottom=0)
    styles = {name_of(name): {"color": COLOURS[name], "linestyle": LINES[name]} for name in OBJECTIVES}
    title = "Two clients N((±1, 0), I), one Gaussian generator"
    return draw_panels([[panel]], styles | dict.fromkeys(optima, REAL), path, title, "steps of training", (6.4, 4))


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


def messages_against_images(folder: Path) -> dict[str, Any]:
    """Measure clients' messages for FID in "bytes" by D, and how far the loss from them is from that of images."""
    parts = [_features(part, OPTIMISED) for part in client_images(folder)]
    messages = [Message.from_bytes(gaussian_to_sums(summarize(part)).to_bytes(), "sums") for part in parts]
    found: dict[str, Any] = {"value": {}, "gradient": {}}
    batch = torch.cat([part[:4] for part in parts]).flip(1).double()  # any images that are not the clients'

    def loss_to(clients: Any, aggregate: Any) -> tuple[float, Tensor]:
        features = batch.clone().requires_grad_()
        value = FastFIDLoss(aggregate=aggregate).set_references(clients)(features)
        return float(value.detach()), torch.autograd.grad(value, features)[0]

    for aggregate, received in (("all", [add(*messages)]), ("avg", messages)):
        value, gradient = loss_to(list(map(gaussian_from_message, received)), aggregate)
        expected, direction = loss_to(parts, aggregate)
        found["value"][aggregate] = abs(value / expected - 1)
        found["gradient"][aggregate] = float((gradient - direction).norm() / direction.norm())
    sizes = {dim: gaussian_to_sums(summarize(torch.zeros(2, dim))) for dim in SIZES}
    return found | {"bytes": {str(dim): message_size(message) for dim, message in sizes.items()}}


def _features(images: Tensor, embedding: str) -> Tensor:
    return embed(load_embedding(embedding), images, description=f"embedding with {embedding}")


MARKERS = {CONTROL: "s", "fid_all": "o", "fid_avg": "o", "kid_all": "^"}
FLOOR = "held-out real images"
SIDE = 6  # pictures of a grid's side
STYLES = {
    **{name_of(arm): {"color": COLOURS[arm], "marker": MARKERS[arm], "linestyle": "none"} for arm in ARMS},
    FLOOR: {"color": "black", "marker": "*", "linestyle": "none"},
    "real pool": REAL,
    "a client's own": {**REAL, "linestyle": "--"},
}


def draw_digits(digits: Numbers, samples: Mapping[str, Path], path: Path) -> Path:
    real = digits["real traces"][OPTIMISED]
    shares = {name_of(arm): [value / real["pool"] for value in digits["traces"][OPTIMISED][arm]] for arm in ARMS}
    traces = pairs_panel(
        shares,
        levels={"real pool": [1.0], "a client's own": [real["within"] / real["pool"]]},
        title=f"{OPTIMISED}, generated images",
        label="trace of the covariance / real pool's",
        bottom=0,
    )
    columns = {trained_prefix(digits): f"{OPTIMISED}, training images\n(trained on)"}
    if UNRELATED in digits["traces"]:
        columns["report/"] = f"{UNRELATED},\nheld-out images"
    panels, floor = [], digits["floor"]
    for prefix, title in columns.items():
        avg, pooled = (digits["scores"][f"{prefix}fid_{how}"] for how in ("avg", "all"))
        arms = {name_of(arm): {x: [y] for x, y in zip(avg[arm], pooled[arm])} for arm in ARMS}
        if f"{prefix}fid_all" in floor:
            arms[FLOOR] = {floor[f"{prefix}fid_avg"]: [floor[f"{prefix}fid_all"]]}
        panels.append(ArmPanel(arms, title=title, label="FID-all"))
    pictures = [(file, name_of(arm), COLOURS.get(arm, "black")) for arm, file in samples.items()]
    return draw_panels([[*panels, traces]], STYLES, path, "", "FID-avg, or the loss", (3.6, 3.4), pictures)


def trained_prefix(digits: Numbers) -> str:
    """The beginning of columns of the images and the embedding that losses were trained on."""
    trained = (name for name, mark in digits["marks"].items() if mark == SAME and name.endswith("fid_all"))
    return next(trained).removesuffix("fid_all")


def digits_table(digits: Numbers) -> Table:
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
            text = f"FID-all and FID-avg train other models: of one seed they are {between:.3g} apart in FID-{how}"
            text += f" on average, two seeds of one of them {within:.3g}"
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
    text = f"FID-avg leaves a lower trace of the generated covariance, {statistics.mean(single):.2f} of the pool's,"
    text += f" than FID-all, {statistics.mean(pooled):.2f} (within a client: {real['within'] / real['pool']:.2f})"
    lines.append(verdict_on(text, (pooled, single), "less"))
    sent = digits["messages"]
    worst = max(max(sent[part].values()) for part in ("value", "gradient"))
    sizes = ", ".join(f"{size:,} at D = {dim}" for dim, size in sent["bytes"].items())
    text = f"FID's loss from the clients' messages ({sizes} bytes) is that from their images within {worst:.1e}"
    return [*lines, expectation(text, worst < ROUNDING)]


def apart(row: Mapping[str, Sequence[float]]) -> tuple[float, float | None]:
    """Mean distances of a score: of FID-all's and FID-avg's models of one seed, and of two seeds of one, if any."""
    arms = row["fid_all"], row["fid_avg"]
    within = [abs(a - b) for values in arms for a, b in itertools.combinations(values, 2)]
    return statistics.mean(abs(a - b) for a, b in zip(*arms)), statistics.mean(within) if within else None


TOY = ToySettings()
QUICK_TOY = ToySettings(points=2000, kernel_points=500, batch=256, queue=1024, steps=200)
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
    toy = study.each("toy", {f"seed {one}": one for one in choice.seeds_of}, lambda one: train_toy(toy_settings, one))
    runs = trainings(study, choice)
    digits = study.step("digits", lambda: measure(runs, choice))
    samples = {arm: study.path(f"samples-{arm}.png") for arm in (*ARMS, "real")}
    if not all(path.exists() for path in samples.values()):
        parts = client_images(runs[CONTROL][0].folder)
        each = -(-SIDE * SIDE // len(parts))  # of each client as many
        images = {"real": torch.stack([part[:each] for part in parts], dim=1).flatten(0, 1)}
        images |= {arm: generated_images(own[0].folder, seed=choice.seed) for arm, own in runs.items()}
        for name, path in samples.items():
            save_png(path, tile(images[name][: SIDE * SIDE], SIDE, min_side=32))
    tables: list[Table | str] = [toy_table(toy), *toy_outcomes(toy), digits_table(digits)]
    tables += [difference_table(digits)] if choice.seeds > 1 else []
    tables += [*digits_outcomes(digits), KID_AVG, f"figure: {draw_toy(toy, study.path(FIGURES[0]))}"]
    study.report(tables, draw_digits(digits, samples, study.path(FIGURES[1])))


def measure(runs: Mapping[str, Sequence[Training]], choice: DistributedChoice) -> dict[str, Any]:
    scored = {arm: [last_scores(run.folder, choice.rounds) for run in own] for arm, own in runs.items()}
    first = runs[CONTROL][0].folder
    records = Run(first).records
    name_in = Columns.of(records).name
    columns = [name for name in scored[CONTROL][0] if name.endswith(("_all", "_avg"))]
    found: dict[str, Any] = {
        "scores": {name: {arm: [run[name].value for run in own] for arm, own in scored.items()} for name in columns},
        "marks": {name: mark_of(scored["fid_all"][0][name]) for name in columns},
        "floor": {name_in(record): record.value for record in records if record.is_floor},
        "real traces": real_traces(first, choice.embeddings),
        "messages": messages_against_images(first),
    }
    if len(scored[CONTROL]) > 1:
        found["against no loss"] = {arm: compare(scored[CONTROL], own) for arm, own in scored.items() if arm != CONTROL}
    found["traces"] = {name: {arm: [] for arm in runs} for name in choice.embeddings}
    for arm, run in ((arm, run) for arm, own in runs.items() for run in own):
        for name, value in traces(generated_images(run.folder, seed=choice.seed), choice.embeddings).items():
            found["traces"][name][arm].append(value)
    return found
