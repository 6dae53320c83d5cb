"""A StyleGAN2 fine-tuned against its server's images and by MMD^2 towards clients who keep theirs, in three forms.

Section 8.3 of "On the (Distributed) Evaluation of Generative Models" (arXiv 2310.11714): twelve clients around centres
of a pretrained network that share an attribute; loss = GAN loss against the images that the network was trained on + 5
MMD^2 with KID's kernel. Each form is scored where it was optimised and in an embedding that nothing was trained on,
against images of the clients that nobody trained on, beside the same game without the second objective.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table
from torch import Tensor

from fedgen.clients import FederatedDataModule
from fedgen.embeddings import load_embedding
from fedgen.evaluation.marks import say_marks
from fedgen.evaluation.runs.rebuild import rebuild
from fedgen.experiments.engine.aggregate_rankings import expectation
from fedgen.experiments.engine.arms.arm_curves import REAL, Rows, draw_arm, finish_panels
from fedgen.experiments.engine.image_scores import scores_table
from fedgen.experiments.engine.paired_seeds import CELL, by_chance, cell, compare_pairs, verdict
from fedgen.experiments.engine.recipe_file import fingerprints
from fedgen.experiments.engine.results import save_figure
from fedgen.experiments.engine.study import FOLDER, Study, folder_name
from fedgen.experiments.engine.trainings import train_all
from fedgen.experiments.paired.mmd2.mmd2_arms import (
    ARMS,
    CONTROL,
    EXACT,
    FORMS,
    LOCAL,
    MESSAGE,
    START,
    Mmd2Choice,
    Mmd2Runs,
    images_of,
    sent,
)
from fedgen.experiments.paired.mmd2.mmd2_clients import find_centres, public_images, write_clients
from fedgen.experiments.paired.mmd2.mmd2_scores import (
    COVERAGE,
    FID_SERVER,
    HIGHER,
    KID_ALL,
    KID_AVG,
    RECALL,
    SCORES,
    TITLES,
    HeldOutScores,
    drifts,
    message_errors,
)
from fedgen.experiments.ranking.truncation.truncated_styles import TruncatedStyles, read_styles
from fedgen.io.files import in_bytes
from fedgen.reports.figures.picture_panels import show_rows

COLUMNS = 14  # latents in the picture of samples
ALIKE = 1e-9  # of KID's gap between avg and all: rounding leaves less
CURVES, GRID = "mmd2_finetune.png", "mmd2_samples.png"
STYLES = {
    CONTROL: {"color": "0.35", "marker": "x"},
    EXACT: {"color": "#1f5fa8", "marker": "o"},
    LOCAL: {"color": "#3a8a3a", "marker": "s"},
    MESSAGE: {"color": "#c4560b", "marker": "^"},
}
PANELS = (KID_AVG, KID_ALL, FID_SERVER, RECALL, COVERAGE)


def mmd2_finetune(output: Path | None = None, **options: Any) -> None:
    """Fine-tunes a StyleGAN2 towards twelve clients by distributed MMD^2, in three forms and with weight 0.

    Finished runs are kept and not run again; stopped ones go on. With the kit's own network an hour and a half on one
    core. The paper's settings are --network ffhq.safetensors --server_data FOLDER --centres ... --embedding
    inception-v3-compat --judge dinov2-vit-b14 --rounds 100 --iterations 156, and a GPU.

    Args:
        output: folder of the clients, the runs, results.json and two figures.
        options: the fields of `Mmd2Choice`.
    """
    choice = Mmd2Choice(**options)
    styles = read_styles(choice.network, choice.device)
    settings = choice.settings()
    root = output or FOLDER / folder_name("mmd2-finetune", settings)
    runs = Mmd2Runs(choice, styles.network.image_shape, root, styles.fingerprint())
    settings |= {"network": styles.fingerprint(), "recipe": fingerprints([runs.recipe])}
    study = Study("mmd2-finetune", root, settings)
    measure(study, runs, styles)
    rows = rows_of(study.numbers["scores"], runs)
    if not study.path(GRID).exists():
        draw_samples(runs, study.path(GRID))
    floors = [study.numbers["floor"][str(seed)] for seed in choice.seeds_of]
    tables: list[Table | str] = [table_of(rows, floors, name, choice) for name in (choice.judge, choice.embedding)]
    tables += [traffic_table(study.numbers["traffic"], choice), message_table(study.numbers["messages"])]
    tables += [drift_line(study.numbers["drift"]), *outcomes(rows, floors, choice)]
    tables += [f"centres of seed {seed}: {study.numbers['centres'][str(seed)]}" for seed in choice.seeds_of]
    tables.append(f"samples: {study.path(GRID)}")
    study.report(tables, draw_curves(rows, floors, choice, study.path(CURVES)))


def measure(study: Study, runs: Mmd2Runs, styles: TruncatedStyles) -> None:
    """Makes clients, trains what is missing, and scores every state and the clients' own images."""
    choice, seeds = runs.choice, {str(seed): seed for seed in runs.choice.seeds_of}
    if not study.missing("drift"):
        return
    public = public_images(choice, styles)
    judge = load_embedding(choice.judge, weights=choice.weights).to(choice.device)
    embedding = load_embedding(choice.embedding).to(choice.device)
    centres = study.each("centres", seeds, lambda seed: find_centres(choice, styles, public, seed), "seeds")
    for name, seed in seeds.items():
        write_clients(choice, styles, centres[name], seed, runs.clients(seed))
    train_all([runs.training(arm, seed) for seed in seeds.values() for arm in ARMS], choice.parallel)

    def data_of(seed: int) -> FederatedDataModule:
        return rebuild(runs.training(CONTROL, seed).place)[1]

    def scored(seed: int) -> dict[str, Any]:
        scores = HeldOutScores(data_of(seed), public, [judge, embedding])
        made = {state: images_of(path, choice.num_images, seed, choice.device) for state, path in _paths(runs, seed)}
        return {"floor": scores.floor} | {state: scores.score(images) for state, images in made.items()}

    found = study.each("scores", seeds, scored, "seeds")
    study.step("floor", lambda: {name: own["floor"] for name, own in found.items()})
    last = {arm: list(runs.states(arm, choice.seed).values())[-1] for arm in FORMS}
    study.step("traffic", lambda: {arm: asdict(sent(path)) for arm, path in last.items()})
    data, batch = data_of(choice.seed), images_of(choice.network, choice.batch, choice.seed, choice.device)
    study.step("messages", lambda: message_errors(data, public, batch, embedding))
    study.step("drift", lambda: drifts(styles, data, embedding, choice.batch, choice.seed))


def _paths(runs: Mmd2Runs, seed: int) -> list[tuple[str, Path]]:
    """Every state that is scored; the arms of a seed share their start."""
    found = {_key(arm, shown): path for arm in ARMS for shown, path in runs.states(arm, seed).items()}
    return list(found.items())


def _key(arm: str, shown: int) -> str:
    return f"{arm if shown else START}, {shown} images"


def rows_of(scores: Mapping[str, Any], runs: Mmd2Runs) -> Rows:
    """The scores by arm, images shown and seed."""
    first = runs.choice.seed
    return {
        arm: {
            shown: [scores[str(seed)][_key(arm, shown)] for seed in runs.choice.seeds_of]
            for shown in runs.states(arm, first)
        }
        for arm in ARMS
    }


def compare(rows: Rows, arm: str, embedding: str, score: str) -> dict[str, Any]:
    """An arm's last state beside the control's of the same seeds, as `compare_pairs` gives it."""
    control, own = ([one[embedding][score] for one in rows[name][max(rows[name])]] for name in (CONTROL, arm))
    return compare_pairs(control, own, lambda value: -value if score in HIGHER else value)


def table_of(
    rows: Rows, floors: Sequence[Mapping[str, Mapping[str, float]]], embedding: str, choice: Mmd2Choice
) -> Table:
    """Scores in one embedding at the start and after fine-tuning: means over seeds, and differences from weight 0."""
    mark = "*" if embedding == choice.embedding else ""
    lines = [f"{CELL}, beside {CONTROL}"] if choice.seeds > 1 else []
    lines += ["clients: their own training images in a generator's place", *say_marks({mark} - {""})]
    title = f"{embedding}, {choice.num_images:,} images to held-out ones, mean of {choice.seeds} seed(s)"
    table = scores_table(title, lines, ["generator"], TITLES.values(), max_width=16)

    def plain(values: Sequence[Mapping[str, Mapping[str, float]]]) -> list[str]:
        return [f"{statistics.mean(one[embedding][score] for one in values):.3g}" for score in SCORES]

    table.add_row("clients", *plain(floors))
    table.add_row(START, *plain(rows[CONTROL][0]))
    table.add_row(CONTROL, *plain(rows[CONTROL][max(rows[CONTROL])]))
    for arm in FORMS:
        table.add_row(arm, *(cell(compare(rows, arm, embedding, score), mark) for score in SCORES))
    return table


def traffic_table(traffic: Mapping[str, Mapping[str, int]], choice: Mmd2Choice) -> Table:
    """Return what was sent in a run of each form."""
    table = Table(title=f"sent in a run, {choice.clients} clients together")
    for title in ("form", "to the clients", "from the clients", "questions"):
        table.add_column(title, justify="left" if title == "form" else "right")
    for arm, found in traffic.items():
        asked = f"{found['questions']:,}" if found["questions"] else f"{choice.rounds} rounds"
        table.add_row(arm, in_bytes(found["down"]), in_bytes(found["up"]), asked)
    return table


def message_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return what form (c) is off from (a), for several sizes."""
    table = Table(title="one message against asking at every step: a batch at the start")
    for title in ("summary", "from the clients", "value off by", "gradient off by", "cosine of gradients"):
        table.add_column(title, justify="left" if title == "summary" else "right", no_wrap=title == "summary")
    for row in rows:
        numbers = f"{row['value']:.1%}", f"{row['gradient']:.1%}", f"{row['cosine']:.4f}"
        table.add_row(row["summary"], in_bytes(row["up"]), *numbers)
    return table


def drift_line(drift: Mapping[str, Sequence[float]]) -> str:
    """Say what form (b) is off from (a), by local steps."""
    steps = len(next(iter(drift.values())))
    lines = [f"drift of (b) from (a) after 1 to {steps} local steps of SGD, as a share of the way:"]
    for move, values in drift.items():
        shown = ", ".join(f"{value:.2g}" for value in values)
        lines.append(f"  a first step of {move} of the weights' norm: {shown}")
    return "\n".join(lines)


def outcomes(rows: Rows, floors: Sequence[Mapping[str, Mapping[str, float]]], choice: Mmd2Choice) -> list[str]:
    """Return what was expected of each form, and whether it is so beyond the interval of paired seeds."""
    judge, own, lines = choice.judge, choice.embedding, []
    for arm in FORMS:
        lines += [
            verdict(f"{arm}: KID-avg in {judge}, that nothing was trained on, falls", _of(rows, arm, judge), "less"),
            verdict(f"{arm}: KID-avg in {own}, trained on, falls", _of(rows, arm, own), "less"),
        ]
        for score in (RECALL, COVERAGE):
            row = compare(rows, arm, judge, score)
            lines.append(verdict(f"{arm}: {score} of the clients in {judge} does not fall", row, "not less"))
        lines.append(_collapse(rows, floors, arm, judge))
    gaps = [[gap_of(states[k][judge]) for arm in ARMS for states in rows[arm].values()] for k in range(choice.seeds)]
    spread = max((max(each) - min(each)) / abs(statistics.mean(each)) for each in gaps)
    text = f"KID-avg - KID-all is one number for all generators of a seed, to {spread:.1e} of it"
    lines.append(expectation(text, spread < ALIKE))
    return lines + ([by_chance(4 * len(FORMS))] if choice.seeds > 1 else [])


def gap_of(scores: Mapping[str, float]) -> float:
    """KID-avg - KID-all."""
    return scores[KID_AVG] - scores[KID_ALL]


def _of(rows: Rows, arm: str, embedding: str) -> dict[str, Any]:
    return compare(rows, arm, embedding, KID_AVG)


def _collapse(rows: Rows, floors: Sequence[Mapping[str, Mapping[str, float]]], arm: str, judge: str) -> str:
    """Say whether FID-all to the server's images stays nearer to the control's than to the clients' own images'."""
    found = compare(rows, arm, judge, FID_SERVER)["values"]
    control = [one[judge][FID_SERVER] for one in rows[CONTROL][max(rows[CONTROL])]]
    gone = [floor[judge][FID_SERVER] for floor in floors]
    ways = [(value - start) / (end - start) for value, start, end in zip(found, control, gone)]
    text = (
        f"{arm}: FID-all to the server's images in {judge} goes {statistics.mean(ways):.1%} of the way from {CONTROL}"
    )
    return expectation(f"{text} to the clients' own images (at most {max(ways):.1%})", max(ways) < 0.5)


def draw_samples(runs: Mmd2Runs, path: Path) -> Path:
    """Images of the clients, and of the same latents before and after each arm, of the first repetition."""
    choice, seed = runs.choice, runs.choice.seed
    data = rebuild(runs.training(CONTROL, seed).place)[1]
    chosen = [int(client.train[k]) for k in range(COLUMNS) for client in data.clients if k < len(client.train)]
    rows = {"clients": data.examples.inputs[chosen[:COLUMNS]]}
    rows[START] = images_of(choice.network, COLUMNS, seed, choice.device)
    for arm in ARMS:
        rows[arm] = images_of(list(runs.states(arm, seed).values())[-1], COLUMNS, seed, choice.device)
    return draw_grid(rows, path)


def draw_curves(
    rows: Rows, floors: Sequence[Mapping[str, Mapping[str, float]]], choice: Mmd2Choice, path: Path
) -> Path:
    """A row an embedding, a panel a score, over thousands of images shown: each seed, and their mean.

    Args:
        rows: by arm and images shown.
        floors: by seed: embedding -> score -> what the clients' own training images score.
        choice: of embeddings.
        path: of the PNG.
    """
    from matplotlib.figure import Figure

    embeddings = (choice.judge, choice.embedding)
    figure = Figure(figsize=(3.2 * len(PANELS), 6.2), layout="constrained")
    panels = figure.subplots(len(embeddings), len(PANELS), sharex=True)
    for line, embedding in zip(panels, embeddings):
        for axes, score in zip(line, PANELS):
            for arm in ARMS:
                draw_arm(axes, rows[arm], (embedding, score), 1000, **STYLES[arm])
            real = statistics.mean(floor[embedding][score] for floor in floors)
            if score == COVERAGE:  # a line so far above all others would leave them flat
                axes.text(0.03, 0.94, f"the clients' training images: {real:.2f}", transform=axes.transAxes, fontsize=8)
                axes.margins(y=0.15)
            elif score != FID_SERVER:  # of a generator that has gone over to the clients: far above all others too
                axes.axhline(real, **REAL, linewidth=1.2)
            axes.set_title(TITLES[score], fontsize=10)
        used = "MMD² minimised in it" if embedding == choice.embedding else "nothing trained on it"
        line[0].set_ylabel(f"{embedding}\n{used}", fontsize=10)
    finish_panels(figure, panels, "thousands of images", STYLES, "the clients' training images")
    figure.suptitle(
        f"{choice.network.stem} towards {choice.clients} clients; scores to their held-out images", fontsize=12
    )
    return save_figure(figure, path)


def draw_grid(rows: Mapping[str, Tensor], path: Path) -> Path:
    """Rows of images, uint8 [columns, C, H, W], what a row is at its left.

    Args:
        rows: by what to call them.
        path: of the PNG.
    """
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    columns = len(next(iter(rows.values())))
    layout = ConstrainedLayoutEngine(w_pad=0.2)  # labels reach beyond what the layout reserves
    figure = Figure(figsize=(0.62 * columns + 1.4, 0.62 * len(rows) + 0.3), layout=layout)
    axes = figure.subplots()
    show_rows(axes, rows)
    axes.set_title("one client image of each client in turn; then one latent a column", fontsize=10)
    return save_figure(figure, path)
