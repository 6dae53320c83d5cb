"""Costs of privacy: scores from messages in place of images, and a generator's under noise for whole clients.

FID-all and KID-all of Gaussian clients from what they send: bytes, rounding, sketches, noise. With D features noise for
differential privacy adds about D^2 variances to the covariance; eigenvalues below it drown. Then a WGAN-GP's scores
beside its epsilon: the plain mean, updates clipped, and clipped with noise (`PrivateMean`, McMahan et al. 2018, arXiv
1710.06963).
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, ClassVar, get_args

import torch
from rich.table import Table
from torch import Tensor

from fedgen.evaluation import Run
from fedgen.evaluation.names import REPORT
from fedgen.evaluation.records import FLOOR, MODEL
from fedgen.experiments.engine import trainings
from fedgen.experiments.engine.arm_panels import REAL, ArmPanel, Styles, draw_panels
from fedgen.experiments.engine.paired_seeds import change_of, compare_pairs, mean_of, verdict
from fedgen.experiments.engine.scored_arms import REAL_IMAGES
from fedgen.experiments.engine.study import Choice, Numbers, Study, expectation, make_table
from fedgen.federated.aggregators.private_mean import Participations
from fedgen.io.files import in_bytes
from fedgen.scores import FrechetReference, KernelReference, PolynomialKernel, RBFKernel, kid_from_messages, kid_message
from fedgen.seeds import derive, generator
from fedgen.statistics import CubicSketch, FourierSketch, Gaussian, add, message_size, noise_multiplier, summarize
from fedgen.statistics.fixed_point import FixedPoint, mask
from fedgen.statistics.private import Accountant, Privacy, Projecting, federated_epsilon, private_gaussian, private_sums
from fedgen.statistics.statistic_messages import gaussian_from_message, gaussian_to_message, gaussian_to_sums

CLIENTS = 10
RADIUS, DELTA = 3.0, 1e-5
EPSILONS = (0.1, 0.3, 1.0, 3.0, 8.0)
BITS = (16, 24, 32)
# of sketches; "server alone" asks the clients nothing about the generated images
FORMS = ("cubic, centred", "cubic, uncentred", "cubic, server alone", "RBF", "RBF, server alone")


@dataclass(frozen=True)
class Toy:
    """Ten Gaussian clients of D features and a Gaussian generator of a narrower covariance."""

    dim: int
    spectrum: str  # "flat": every variance 0.02; "falling": as 1 / k with a sum of 2
    images: int
    seed: int

    def variances(self) -> Tensor:
        """Within every client, float64 [D]."""
        if self.spectrum == "flat":
            return torch.full((self.dim,), 0.02, dtype=torch.float64)
        falling = 1 / torch.arange(1, self.dim + 1, dtype=torch.float64)
        return 2 * falling / falling.sum()

    def clients(self) -> list[Tensor]:
        """Features [n_i, D] of each client, around a mean of norm 0.5."""
        draws = generator(self.seed, "private-scores", self.spectrum, self.dim)
        means = torch.randn(CLIENTS, self.dim, generator=draws, dtype=torch.float64)
        means *= 0.5 / means.norm(dim=1, keepdim=True)
        count = self.images // CLIENTS
        noise = torch.randn(CLIENTS, count, self.dim, generator=draws, dtype=torch.float64)
        return list(means.unsqueeze(1) + noise * self.variances().sqrt())

    def generated(self) -> Gaussian:
        """The generator's exact moments: a mean of norm 0.35, 0.8 of the clients' variances."""
        mean = torch.full((self.dim,), 0.35 / self.dim**0.5, dtype=torch.float64)
        return Gaussian(1e9, mean, scatter=torch.diag(0.8 * self.variances()) * 1e9)


def message_sizes(dim: int) -> dict[str, int]:
    features = torch.randn(21, dim, generator=generator(0, "sizes", dim), dtype=torch.float64)
    summary, fixed = summarize(features), FixedPoint(CLIENTS)
    sums = gaussian_to_sums(summary)
    messages = {
        "sums, for FID-all": sums,
        "as fixed point": fixed.encode(sums),
        "with noise": private_sums(features, Privacy(1.0, DELTA, RADIUS), seed=0),
        "cubic sketch, centred, q = 1000": CubicSketch(dim, 1000, centre=summary.mean).message(features),
        "cubic sketch, uncentred, q = 1000": CubicSketch(dim, 1000).message(features),
        "RBF sketch, q = 4000": FourierSketch(dim, 4000).message(features),
        "KID, each checkpoint": kid_message(KernelReference.from_features([features]), features),
        "21 images' features, which do not add": gaussian_to_message(summary),
    }
    return {name: message_size(message) for name, message in messages.items()}


def exactness(toy: Toy) -> dict[str, Any]:
    """Relative errors of FID-all and KID-avg, from sums of floats and of masked whole numbers."""
    clients, generated = toy.clients(), toy.generated()
    messages = [gaussian_to_sums(summarize(part)) for part in clients]
    expected = fid_all(summarize(torch.cat(clients)), generated)["value"]
    found = {"float64 sums": relative(fid_all(gaussian_from_message(add(*messages)), generated)["value"], expected)}
    for bits in BITS:
        fixed = FixedPoint(CLIENTS, bits)
        masked = [mask(fixed.encode(part), number, CLIENTS, toy.seed) for number, part in enumerate(messages)]
        summed = gaussian_from_message(fixed.decode(add(*masked)))
        found[f"fixed point, {bits} bits"] = relative(fid_all(summed, generated)["value"], expected)
    few = [part[:100] for part in clients]
    sample = clients[0][100:400] * 1.1
    kid = add(*(kid_message(KernelReference.from_features([part]), sample) for part in few))
    average = KernelReference.from_features(few).score(sample, errors=False).values["avg"]
    return {"fid_all": found, "kid_avg": relative(float(kid.tensors["score"] / kid.tensors["count"]), average)}


def noise_bias(toy: Toy, draws: int) -> dict[str, Any]:
    """FID-all without noise, the share of clipped images, and by epsilon and projection the changes noise makes."""
    clients, generated = toy.clients(), toy.generated()
    pooled = torch.cat(clients)
    base = fid_all(summarize(pooled), generated)
    found: dict[str, Any] = {"fid": base["value"], "clipped": float((pooled.norm(dim=1) > RADIUS).double().mean())}
    for epsilon in EPSILONS:
        privacy, lost = Privacy(epsilon, DELTA, RADIUS, sharers=CLIENTS), 0
        rows: dict[str, list[float]] = {project: [] for project in get_args(Projecting)}
        for number in range(draws):
            seed = derive(toy.seed, "private-scores", str(epsilon), number)
            total = add(*(private_sums(part, privacy, None, seed, i) for i, part in enumerate(clients)))
            for project in get_args(Projecting):
                score = fid_all(private_gaussian(total, privacy, project=project), generated)
                rows[project].append(score["value"] - base["value"])
                lost += project == "none" and score["covariance"] == 0
        found[str(epsilon)] = {**rows, "lost": lost}
    return found


def sketch_jobs(numbers: tuple[int, ...], draws: int, seed: int) -> dict[str, Callable[[], dict[str, Any]]]:
    draw, dim, clients = generator(seed, "private-scores", "sketches"), 64, list[Tensor]()
    for number in range(CLIENTS):
        mean = 0.5 + 0.5 * torch.randn(dim, generator=draw, dtype=torch.float64)
        scale = 0.6 + 0.04 * number
        clients.append(mean + scale * torch.randn(100, dim, generator=draw, dtype=torch.float64))
    generated = 0.5 + 0.9 * torch.randn(1000, dim, generator=draw, dtype=torch.float64)
    given = clients, generated, draws
    return {f"{form} {number}": partial(sketch_error, form, number, *given) for form, number in product(FORMS, numbers)}


def sketch_error(form: str, number: int, clients: list[Tensor], generated: Tensor, draws: int) -> dict[str, Any]:
    """KID-all from sketches of several seeds beside the exact one, and the errors that the sketches state."""
    kernel = RBFKernel() if form.startswith("RBF") else PolynomialKernel()
    exact = KernelReference.from_features(clients, kernel).score(generated, errors=False).values["all"]
    kid = add(*(kid_message(KernelReference.from_features([part], kernel), generated) for part in clients))
    found = []
    for seed in range(draws):
        pool, other = sketched(form, number, seed, clients, generated)
        if form.endswith("server alone"):
            estimate = pool.mmd2(other)
            found.append((estimate.value, estimate.error))
        else:
            summed = kid_from_messages(kid, pool)
            found.append((summed.all, summed.error))
    values, stated = [value for value, _ in found], [error for _, error in found]
    return {"exact": exact, "values": values, "stated": stated, "rms": rms([value - exact for value in values])}


def sketched(form: str, number: int, seed: int, clients: list[Tensor], generated: Tensor) -> tuple[Any, Any]:
    dim, read = generated.shape[1], summarize(generated)
    if form.startswith("RBF"):
        waves = FourierSketch(dim, number, seed)
        return waves.read(add(*map(waves.message, clients))), waves.read(waves.message(generated))
    pooled = gaussian_from_message(add(*(gaussian_to_sums(summarize(part)) for part in clients)))
    cubic = CubicSketch(dim, number, seed, None if form.endswith("uncentred") else pooled.mean)
    return cubic.read(add(*map(cubic.message, clients)), pooled), cubic.read(cubic.message(generated), read)


def fid_all(pooled: Gaussian, generated: Gaussian) -> dict[str, float]:
    """FID of the generator to the clients' pool, and its covariance term."""
    score = FrechetReference.from_summaries([pooled]).score(generated, errors=False)
    return {"value": score.values["all"], "covariance": score.terms["covariance"]["all"]}


def relative(found: float, expected: float) -> float:
    return abs(found / expected - 1)


def rms(values: list[float]) -> float:
    return statistics.mean(value**2 for value in values) ** 0.5


DIMS = (16, 64, 256)
SIZES = (64, 1280, 2048)  # features of a small layer, of EfficientNet-Lite0 and of Inception
SKETCHES = (250, 1000, 4000, 16000)
SPECTRA = ("flat", "falling")
COLOURS = ("#1f5fa8", "#c4560b", "#3a8a3a")
FORM_COLOURS = dict(zip(FORMS, ("#1f5fa8", "#c4560b", "#7a4fa0", "#3a8a3a", "#b8860b")))
LINES = {"trace": "-", "clamp": ":", "none": "--"}
REAL_ERROR = "real"
SKETCH_LINES = {REAL_ERROR: "-", "as stated": "--"}
LABELS = {"trace": "projected, same trace", "clamp": "projected, clamped", "none": "not projected"}


@dataclass(frozen=True)
class PrivateScoresChoice(Choice):
    """Options of private-scores; its fields are options of the command.

    Args:
        images: of all ten clients together.
        draws: of the noise, at each setting, and of the sketches, four times as many.
        quick: seconds, to see that it runs.
    """

    QUICK: ClassVar[Mapping[str, Any]] = {"images": 5_000, "draws": 2}
    LEAST: ClassVar[Mapping[str, float]] = {"images": 100 * CLIENTS, "draws": 2}

    images: int = 50_000
    draws: int = 5


def private_scores(**options: Any) -> None:
    """Measures messages, their sums' exactness and what rounding, sketches and noise change of FID-all and KID-all."""
    choice = PrivateScoresChoice(**options)
    images, draws, seed = choice.images, choice.draws, choice.seed
    dims, numbers = (DIMS[:2], SKETCHES[:2]) if choice.quick else (DIMS, SKETCHES)
    study = choice.study("private-scores")
    sizes = study.each("bytes", {str(dim): dim for dim in SIZES}, message_sizes, unit="sizes of features")
    exact = study.step("exact", lambda: exactness(Toy(64, "flat", min(images, 5_000), seed)))
    toys = {f"{spectrum} {dim}": Toy(dim, spectrum, images, seed) for spectrum in SPECTRA for dim in dims}
    noise = study.each("noise", toys, lambda toy: noise_bias(toy, draws), unit="spectra")
    accountants: tuple[Accountant, ...] = ("analytic", "classic")  # exact, and by the textbook's formula

    def noise_of(one: Accountant) -> dict[str, float]:
        return {str(epsilon): noise_multiplier(epsilon, DELTA, accountant=one) for epsilon in (1.0, 8.0)}

    multipliers = study.step("multipliers", lambda: {str(one): noise_of(one) for one in accountants})
    measured = sketch_jobs(numbers, 4 * draws, seed)
    sketches = study.each("sketches", measured, lambda job: job(), unit="sketches")
    tables = [size_table(sizes), noise_table(noise, images, draws), sketch_table(sketches, 4 * draws)]
    study.report([*tables, *outcomes(exact, multipliers, noise, sketches)], draw_errors(noise, sketches, study.figure))


def outcomes(exact: Numbers, multipliers: Numbers, noise: Numbers, sketches: Numbers) -> list[str]:
    sums, fixed = exact["fid_all"]["float64 sums"], exact["fid_all"]["fixed point, 24 bits"]
    ratios = [rms(row["stated"]) / row["rms"] for row in sketches.values()]
    centred = {name: row["rms"] for name, row in sketches.items() if ", centred" in name}
    gain = min(sketches[name.replace("centred", "uncentred")]["rms"] / error for name, error in centred.items())
    lifts = {name: [rms(row[str(epsilon)]["trace"]) for epsilon in EPSILONS] for name, row in noise.items()}
    by_dim = [[lifts[name][2] for name in lifts if name.startswith(spectrum)] for spectrum in SPECTRA]
    share = multipliers["analytic"]["1.0"] / multipliers["classic"]["1.0"]
    most, low, high = max(sums, exact["kid_avg"]), min(ratios), max(ratios)
    falls = all(row == sorted(row, reverse=True) for row in lifts.values())
    lines = {
        f"FID-all and KID-avg from sums are those on features, to {most:.0e}": most < 1e-11,
        f"masked whole numbers of 24 bits change FID-all by {fixed:.0e} of it": fixed < 1e-8,
        f"sketches state their error: {low:.2f} to {high:.2f} of the real one": low > 0.4 and high < 2.5,
        f"centring lowers the cubic sketch's error {gain:.0f}-fold or more": gain > 2,
        "the error of FID-all falls with epsilon at every D": falls,
        "and rises with D at epsilon = 1, for both spectra": all(row == sorted(row) for row in by_dim),
        f"exact accounting takes {share:.0%} of the textbook's noise at epsilon = 1": share < 1,
    }
    return [expectation(text, met) for text, met in lines.items()]


def size_table(sizes: Mapping[str, Mapping[str, int]]) -> Table:
    rows = [(name, *(in_bytes(row[name]) for row in sizes.values())) for name in next(iter(sizes.values()))]
    return make_table("size of one client's message", ("message", *(f"D = {dim}" for dim in sizes)), rows)


def noise_table(noise: Numbers, images: int, draws: int) -> Table:
    rows: list[Sequence[str]] = []
    for name, row in noise.items():
        names = [name, f"FID {row['fid']:.3f}", *[""] * len(EPSILONS)]
        for first, epsilon in zip(names, EPSILONS):
            cell = row[str(epsilon)]
            added = [f"{statistics.mean(cell[p]):+.3f}±{statistics.stdev(cell[p]):.3f}" for p in LABELS]
            lost = f"{cell['lost']}/{len(cell['none'])}" if cell["lost"] else ""
            rows.append((first, f"{epsilon:g}", *added, lost))
        rows.append(())
    clipped = max(row["clipped"] for row in noise.values())
    title = f"what noise adds to FID-all ({images:,} images of {CLIENTS} clients,\n"
    title += f"delta = {DELTA:g}, R = {RADIUS:g}, noise shared; mean ± deviation of {draws} draws)"
    note = "lost: unprojected, the covariance term fell below 0 and reads 0,\nas a perfect generator's would; "
    note += f"at most {clipped:.1%} of images are clipped"
    return make_table(title, ("spectrum, D", "eps", "same trace", "clamped", "unprojected", "lost"), rows, note)


def sketch_table(sketches: Numbers, seeds: int) -> Table:
    rows = [
        (name, f"{row['exact']:.4f}", *(f"{error / row['exact']:.1e}" for error in (row["rms"], rms(row["stated"]))))
        for name, row in sketches.items()
    ]
    title = f"error of KID-all by sketches, relative to it\n(D = 64, 1,000 images, rms of {seeds} seeds)"
    return make_table(title, ("sketch, q", "KID-all", "error", "stated"), rows)


def draw_errors(noise: Numbers, sketches: Numbers, path: Path) -> Path:
    styles = dict[str, dict[str, str]]()
    for (kind, line), form in product(SKETCH_LINES.items(), FORMS):
        styles[f"{form}, {kind}"] = {"color": FORM_COLOURS[form], "linestyle": line, "marker": "."}
    dims = list(dict.fromkeys(int(name.split()[1]) for name in noise))
    for (dim, colour), (project, label) in product(zip(dims, COLOURS), LABELS.items()):
        styles[f"D = {dim}, {label}"] = {"color": colour, "linestyle": LINES[project], "marker": "."}

    def of_noise(spectrum: str) -> ArmPanel:
        arms = {
            f"D = {dim}, {label}": {e: [rms(noise[f"{spectrum} {dim}"][str(e)][project])] for e in EPSILONS}
            for dim, (project, label) in product(dims, LABELS.items())
        }
        title = f"{spectrum} spectrum, against epsilon"
        return ArmPanel(arms, title=title, label="error of FID-all by noise (rms)", log="xy")

    curves: dict[str, dict[int, list[float]]] = {f"{form}, {kind}": {} for form, kind in product(FORMS, SKETCH_LINES)}
    for (name, row), kind in product(sketches.items(), SKETCH_LINES):
        form, q = name.rsplit(" ", 1)
        error = row["rms"] if kind == REAL_ERROR else rms(row["stated"])
        curves[f"{form}, {kind}"][int(q)] = [error / row["exact"]]
    title = "KID-all by sketches, against their number q"
    last = ArmPanel(curves, title=title, label="relative error of KID-all (rms)", log="xy")
    return draw_panels([[*map(of_noise, SPECTRA), last]], styles, path, "Scores from messages", size=(4.6, 4.4))


PLAIN, CLIPPED, NOISY = "plain mean", "clipped", "clipped and noisy"
SCORES = {"fid_avg": "FID-avg", "fid_all": "FID-all", "kid_all": "KID-all"}
AGGREGATOR = "trainer.strategy.init_args.aggregator"
STYLES: Styles = {
    NOISY: {"color": "#1f5fa8", "marker": "o"},
    CLIPPED: {"color": "#b35c00", "linewidth": 1},
    PLAIN: {"color": "#3a8a3a", "linewidth": 1},
    REAL_IMAGES: REAL,
}
Found = Mapping[str, Sequence[Mapping[str, float]]]  # arm -> one for each seed: score -> value


@dataclass(frozen=True)
class PrivacyChoice(trainings.RecipeChoice):
    """Options of privacy-cost; its fields are options of the command.

    Args:
        noise: standard deviations of the noise over `max_norm`.
        max_norm: the longest update allowed.
        delta: at which epsilon is stated.
        recipe: with a PrivateMean, client_weights uniform and a cohort_size.
        rounds: of every run; the recipe's by default.
        num_images: generated for the scores.
        runs: folder of the run folders.
    """

    QUICK: ClassVar[Mapping[str, Any]] = {"rounds": 2, "seeds": 1, "num_images": 60}

    noise: tuple[float, ...] = (0.03, 0.1, 0.3, 1.0, 3.0)
    max_norm: float = 0.5
    delta: float = 1e-3
    recipe: Path = Path("recipes/wgan_gp_digits_private.yaml")
    rounds: int | None = None
    num_images: int = 1000
    runs: Path = Path("checkpoints/runs")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.noise or min(self.noise) <= 0:
            raise ValueError(f"noise={list(self.noise)}: give one or more positive multiples of max_norm")

    @property
    def total(self) -> int:
        return self.rounds or trainings.rounds_of(self.recipe)

    def resolved(self) -> dict[str, Any]:
        return {"rounds": self.total, "recipe": trainings.start_of(self.recipe)}


def privacy_cost(**options: Any) -> None:
    """Scores of a generator trained with clipped updates and more and more noise, and the epsilon that each spent."""
    choice = PrivacyChoice(**options)
    recipe, delta, noise = choice.recipe, choice.delta, choice.noise
    study, evaluation = choice.study("privacy-cost"), {"every_n_rounds": choice.total, "num_images": choice.num_images}
    common = trainings.evaluated(choice.total, **evaluation, embeddings=["efficientnet-lite0-32"], grid=64)
    arms = [trainings.Arm(name, {AGGREGATOR: one}) for name, one in arms_of(noise, choice.max_norm, delta).items()]

    def place(arm: trainings.Arm, seed: int) -> Path:
        own = trainings.fingerprint({**common, **arm.settings})[:8]
        return choice.runs / f"{recipe.stem}-{trainings.start_of(recipe)}-{own}-seed{seed}"

    trained = trainings.train_arms(study, "scores", choice, arms, common, place)
    found = study.step(
        "scores", lambda: {name: [_last_scores(run.place) for run in own] for name, own in trained.items()}
    )
    real = study.step("real", lambda: _last_scores(trained[PLAIN][0].place, FLOOR))
    study.numbers.pop("epsilon", None)  # worked out and not measured: of a finished experiment too, as it is done now
    spent = study.step("epsilon", lambda: epsilons(recipe, noise, delta, choice.total, choice.seeds_of))
    study.report([table_of(found, real, spent, delta), *lines_of(found, spent)], draw(study))


def arms_of(noise: Sequence[float], max_norm: float, delta: float) -> dict[str, dict[str, Any]]:
    found = {PLAIN: trainings.component("fedgen.federated.Mean")}
    for multiplier in (0.0, *noise):
        options = {"max_norm": max_norm, "noise_multiplier": multiplier, "delta": delta}
        found[named(multiplier)] = trainings.component("fedgen.federated.PrivateMean", **options)
    return found


def named(multiplier: float) -> str:
    return f"noise {multiplier:g}" if multiplier else CLIPPED


def epsilons(recipe: Path, noise: Sequence[float], delta: float, rounds: int, seeds: Sequence[int]) -> dict[str, float]:
    """Return what each noise has spent after so many rounds, by the seed that draws a client most."""
    settings = trainings.read_recipe(recipe)
    clients = int(settings["data"]["init_args"]["partition"]["init_args"]["num_clients"])
    cohort = int(settings["trainer"]["strategy"]["init_args"]["cohort_size"])
    counts = [Participations(clients, cohort, seed) for seed in seeds]
    for count in counts:
        count.reach(rounds)
    most = max(count.most for count in counts)
    return {named(z): federated_epsilon(z, most, delta) for z in noise}


def _last_scores(folder: Path, generator: str = MODEL) -> dict[str, float]:
    """The last round's scores against held-out images, of the model or of real images."""
    records = [one for one in Run(folder).records if one.generator == generator and one.split == REPORT]
    last = max((one.round for one in records if one.round is not None), default=None)
    return {one.name: one.value for one in records if one.round == last and one.name in SCORES}


def table_of(found: Found, real: Mapping[str, float], spent: Mapping[str, float], delta: float) -> Table:
    rows: list[Sequence[str]] = []
    for name, seeds in found.items():
        means = [f"{mean_of({'values': [one[score] for one in seeds]}):.3g}" for score in SCORES]
        change = change_of(compare_of(found, CLIPPED, name)) if name in spent else ""
        rows.append((name, f"{spent[name]:.3g}" if name in spent else "none", *means, change))
    rows += [(), (REAL_IMAGES, "", *(f"{real[score]:.3g}" for score in SCORES), "")]
    headings = ("aggregation", f"epsilon, delta {delta:g}", *SCORES, "kid_all beside clipping alone")
    title = f"a hundred clients of digits, mean of {len(found[PLAIN])} seed(s), against held-out images"
    return make_table(title, headings, rows)


def lines_of(found: Found, spent: Mapping[str, float]) -> list[str]:
    rows = {name: compare_of(found, CLIPPED, name) for name in spent}
    lines = [verdict("clipping alone is worse than the plain mean: kid_all", compare_of(found, PLAIN, CLIPPED), "more")]
    for name, row in rows.items():
        lines.append(verdict(f"{name}, epsilon {spent[name]:.3g}, is worse than clipping alone: kid_all", row, "more"))
    ordered = list(map(mean_of, rows.values()))
    return [*lines, expectation("kid_all rises with the noise", ordered == sorted(ordered))]


def compare_of(found: Found, control: str, treated: str) -> dict[str, Any]:
    usual, own = ([one["kid_all"] for one in found[arm]] for arm in (control, treated))
    return compare_pairs(usual, own)


def draw(study: Study) -> Path:
    found, spent, real = (study.numbers[key] for key in ("scores", "epsilon", "real"))

    def panel(score: str) -> ArmPanel:
        values = {name: [one[score] for one in seeds] for name, seeds in found.items()}
        noisy = {spent[name]: values[name] for name in sorted(spent, key=lambda name: spent[name])}
        levels = {CLIPPED: values[CLIPPED], PLAIN: values[PLAIN], REAL_IMAGES: [real[score]]}
        label = f"{SCORES[score]}, held-out images"
        return ArmPanel({NOISY: noisy}, levels, label=label, log="xy" if score == "fid_all" else "x")

    title = "What privacy for whole clients costs: a hundred clients of digits"
    across = f"epsilon at delta {study.settings['delta']:g}: less is more private"
    panels = [[panel("fid_all"), panel("kid_all")]]
    return draw_panels(panels, STYLES, study.figure, title, across, (4.5, 3.2))
