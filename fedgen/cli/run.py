"""Commands about runs: `evaluate` scores checkpoints again, `select` ranks them, `audit` attacks them, `report`."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fedgen.cli.stored import FLAGS, build_parser, embeddings_in, evaluate_stored, names_in, rounds_in, scores_in
from fedgen.evaluation.names import SignalName
from fedgen.flags import ASK, ASK_ALL, CommandParser, PlainCommandParser, with_flags

if TYPE_CHECKING:  # the parsers are made, and help printed, without torch; `select` needs no Lightning either
    from lightning.pytorch import LightningModule
    from rich.table import Table

    from fedgen.clients import FederatedDataModule
    from fedgen.evaluation import Ranked, Run, ScoreRecord
    from fedgen.evaluation.evaluate import Evaluator
    from fedgen.evaluation.own_models import ClientMatrix

HELP = """\
usage: fedgen evaluate --generated PATH --clients PATH ... [--option VALUE ...]
       fedgen evaluate --generated PATH --reference PATH [--option VALUE ...]
       fedgen evaluate RUN EMBEDDING[,EMBEDDING ...] [--option VALUE ...]

1. Score any images (folders or .npz files): against clients (each client's
   score, avg, all, worst), or against one reference, as torch-fidelity and
   clean-fid do. 2. Score a run's checkpoints again, e.g. in another embedding.

examples:
  fedgen evaluate --generated ours --clients hospitals/*
  fedgen evaluate --generated ours --clients hospitals/* --preset kid
  fedgen evaluate --generated ours --reference test --resize 32
  fedgen evaluate checkpoints/quickstart pixels --num_images 1000
  fedgen evaluate checkpoints/quickstart --preset fid --rounds 39,79

both:
  --scores NAMES           fid,kid (the default), precision, recall, ...
  --preset NAME            a score with its own embedding: fid, kid, fd-dinov2,
                           cmmd, is, fcd; with --reference torch-fidelity or
                           clean-fid
  --weights FILE           local file with the embedding's weights
  --cache DIR              where to cache features; --device NAME, e.g. cuda

images:
  --embedding NAME         efficientnet-lite0 with --clients
  --resize N, --recursive  resize images to N x N; include subfolders
  --output FILE            scores as JSON; --overwrite replaces it

runs:
  --num_images N           generated images per split (10000)
  --rounds N,N             checkpoints to score (all)
  --matrix                 each client's own model on each client's images
  --model M --data D       for a run trained in Python: my_module:make_model

fedgen evaluate --help-all lists every option of both.
"""
EMBEDDINGS = (
    "names or class paths, comma-separated: inception-v3-compat,my_package.MyEmbedding; or with options:"
    " '[{class_path: my_package.MyEmbedding, init_args: {width: 64}}]'; omit with --preset"
)
REPORT = (
    "Write one HTML page that works offline: conclusions, scores over rounds with errors and floors, clients, samples,"
    " logged values, settings. docs/report.md explains it."
)


def evaluate_checkpoints(
    run: Path,
    embeddings: str | None = None,
    scores: str | None = None,
    preset: str | None = None,
    aggregates: str = "",
    client_weights: Literal["examples", "uniform"] = "examples",
    num_images: int = 10_000,
    rounds: str | None = None,
    weights: str | None = None,
    cache: Path | None = None,
    device: str = "cpu",
    sampling: dict[str, Any] | None = None,
    controls: bool = False,
    matrix: bool = False,
    fine_tune: int | None = None,
    model: str | None = None,
    data: str | None = None,
) -> None:
    """Scores a run's checkpoints again, e.g. in another embedding, and adds the scores to the run's.

    Args:
        run: the run folder.
        scores: comma-separated names (fid,kid by default), or with options: '[fid, {name: precision, k: 3}]'; an
            unknown name, such as '?', lists all.
        preset: a score with its own embedding: fid, kid, fd-dinov2, cmmd, is or fcd; or several, comma-separated.
        aggregates: comma-separated aggregates beside avg, all and worst, e.g. power-2,var,pct95.
        client_weights: weights of clients in avg and all: by number of images, or equal.
        num_images: generated images per split.
        rounds: comma-separated rounds of the checkpoints to score, e.g. 39,79; all by default.
        weights: local file with the embedding's weights; needs exactly one embedding.
        cache: folder for cached features of real images.
        device: device for sampling and embedding, e.g. cuda.
        sampling: changed sampling settings of the model, e.g. '{"solver": "ddpm", "steps": 1000}'; these scores are
            stored beside those with the usual settings.
        controls: also score real images in place of generated ones: those of participating clients, and the training
            images; for a run with clients that never train.
        matrix: score only each client's own model on each client's images, at one checkpoint (the last by default);
            for runs with personal tensors or --local_only.
        fine_tune: also score each client's images after this many iterations of the model on that client's training
            images; for a run with clients that never train, the table of gaps shows these scores too.
        model: for a run trained in Python, without a recipe: my_module:make_model or train.py:make_model, a model, a
            function without arguments that returns one, or a class whose checkpoints store its arguments.
        data: its FederatedDataModule in the same way: my_module:make_data.
    """
    # options that do not go together, and a folder without a recipe, are errors before Lightning is loaded
    from fedgen.evaluation.panels import require_device
    from fedgen.evaluation.runs.scores_file import RECIPE, read_recipe

    chosen = rounds_in(rounds)
    options = _scores_and_networks(embeddings, preset, scores, weights)
    options |= {"num_images": num_images, "device": device, "controls": controls}
    options |= {"weights": client_weights, "aggregates": names_in(aggregates)}
    require_device(device)
    if matrix and (fine_tune is not None or controls or len(chosen or ()) > 1):
        raise ValueError("--matrix scores one checkpoint: give --rounds one round, and omit --fine_tune and --controls")
    if model is None and data is None:
        read_recipe(run / RECIPE)
    from fedgen.embeddings import FeatureCache
    from fedgen.evaluation.evaluate import Evaluator

    module, clients = model_and_clients(run, model, data, device, sampling or {})
    evaluator = Evaluator(clients, **options, seed=clients.seed, cache=FeatureCache(cache) if cache else None)
    if matrix:
        from fedgen.evaluation.own_models import matrix_of_run

        _print_matrices(run, matrix_of_run(run, module, evaluator, chosen[0] if chosen else None))
        return
    from fedgen.evaluation.runs.evaluate_run import LocalFineTuning, evaluate_run

    tuning = None if fine_tune is None else LocalFineTuning(clients, fine_tune, device.split(":")[0])
    _print_scores(run, evaluator, evaluate_run(run, module, evaluator, chosen, tuning))


def _print_matrices(run: Path, matrices: "Sequence[ClientMatrix]") -> None:
    """Draws the matrices into the run's folder, and prints each: as a table where one fits, else in a line."""
    from fedgen.evaluation.own_models import matrix_table
    from fedgen.evaluation.runs.scores_file import MATRIX, MATRIX_PICTURE
    from fedgen.progress import make_console
    from fedgen.reports.figures.curves import draw_matrices

    console = make_console()
    unbound = console.options.update(max_width=10_000)
    for matrix in matrices:
        tables = [matrix_table(matrix, errors) for errors in (True, False)]
        fitting = [one for one in tables if console.measure(one, options=unbound).maximum <= console.width]
        line = f"{matrix.split}, {matrix.embedding}: {matrix.words}"
        console.print(fitting[0] if fitting else line, soft_wrap=not fitting)
    picture = draw_matrices(matrices, run / MATRIX_PICTURE)
    console.print(f"written: {picture}, {run / MATRIX}", soft_wrap=True)


def _print_scores(run: Path, evaluator: "Evaluator", scored: "Sequence[ScoreRecord]") -> None:
    """Prints a run's scores and gaps of an evaluation's kind and embeddings, and what avg and all order differently."""
    from fedgen.evaluation.runs.run_folder import Run
    from fedgen.evaluation.runs.scores_file import read_records
    from fedgen.evaluation.runs.selection import one_kind, say_others
    from fedgen.evaluation.tables.table import gap_tables, inversions_found, score_tables
    from fedgen.progress import make_console

    every, console, kinds = read_records(Run(run).scores_path), make_console(), {one.conditions for one in scored}
    records = one_kind(every, run, lambda record: record.conditions in kinds)
    for name in (embedding.name for embedding in evaluator.embeddings):
        own = [record for record in records if record.embedding == name]
        for table in [*score_tables(records, own[0].split, name, console.width), *gap_tables(own)]:
            console.print(table)
    console.print(inversions_found(records))
    usual = one_kind(every, run)
    if others := say_others(records, usual, run):
        console.print(f"By default {others}.", soft_wrap=True)


def model_and_clients(
    run: Path, model: str | None, data: str | None, device: str, sampling: dict[str, Any]
) -> "tuple[LightningModule, FederatedDataModule]":
    """Those of a run's recipe, or those that are named; the model on its device, with other settings of sampling."""
    from fedgen.evaluation.records import change_sampling
    from fedgen.evaluation.runs.rebuild import rebuild, rebuild_given

    if (model is None) != (data is None):
        raise ValueError("--model and --data go together: a run trained in Python needs both")
    module, clients = rebuild(run) if model is None or data is None else rebuild_given(run, model, data)
    change_sampling(module, sampling)
    return module.to(device), clients


def _scores_and_networks(
    embeddings: str | None, preset: str | None, scores: str | None, weights: str | None
) -> dict[str, Any]:
    """Return the scores and embeddings to measure, as options of `Evaluator`; ValueError if they do not go together."""
    from fedgen.evaluation.panels import DEFAULT_SCORES, UNEMBEDDED, find_preset
    from fedgen.evaluation.score_choice import choose_scores

    named, presets = embeddings_in(embeddings), names_in(preset)
    given = None if scores is None else scores_in(scores)
    asked = None if given is None else choose_scores(given)
    unembedded = asked is not None and all(choice.needs in UNEMBEDDED for choice in asked)
    if not named and not presets and not unembedded:
        raise ValueError("give an embedding, or a --preset, which has its own")
    if scores is not None and not named and not unembedded:
        own = ", ".join(presets)
        raise ValueError(f"preset {own} has its own score; omit --scores, or name an embedding for them")
    networks = [*map(str, named), *dict.fromkeys(find_preset(name).embedding_name for name in presets)]
    if weights is not None and len(networks) != 1:
        raise ValueError(f"weights={weights} is for one embedding, got {len(networks)}: {', '.join(networks)}")
    return {
        "embeddings": [{"weights": weights, **(one if isinstance(one, dict) else {"name": one})} for one in named],
        "scores": DEFAULT_SCORES if given is None else given,
        "presets": [{"name": name, "weights": weights} for name in presets],
    }


def select_checkpoint(
    run: Path,
    by: str | None = None,
    against: str | None = None,
    kind: str = "",
    race: float | None = None,
    width: float | None = None,
    most: int = 50_000,
    quote: int | None = None,
    device: str = "cpu",
    model: str | None = None,
    data: str | None = None,
) -> None:
    """Ranks a run's checkpoints, best first, lists where avg and all disagree, and prints the best one's path last.

    Args:
        run: the run folder.
        by: the column, e.g. fid_avg, precision_all, report/pixels/kid_avg; kid_all by default, or fid_all without KID.
        against: a second column: list where it disagrees with the first, instead of avg with all for every score.
        kind: which scores to use if they differ in number of images, weights or seed, e.g. '50 images'.
        race: draw more images for only those checkpoints that may be the best, until one is left with this
            probability, e.g. 0.95; by kid or fidc.
        width: end the race when the remaining checkpoints differ by at most this.
        most: largest number of images per checkpoint in a race.
        quote: score the chosen checkpoint on this many fresh images, which played no part in the choice.
        device: device for sampling and embedding under --race and --quote, e.g. cuda.
        model: for --race and --quote of a run trained in Python: my_module:make_model, as in `fedgen evaluate`.
        data: its FederatedDataModule in the same way: my_module:make_data.
    """
    from fedgen.evaluation.marks import say_directions
    from fedgen.evaluation.records import by_column
    from fedgen.evaluation.runs.run_folder import Run
    from fedgen.evaluation.runs.scores_file import load_influences
    from fedgen.evaluation.runs.selection import column_of, compare, default_column, rank, say_best, say_kind
    from fedgen.evaluation.tables.table import comparison_table, inversions_found
    from fedgen.progress import make_console

    found, console = Run(run, kind), make_console()
    columns = by_column(records := found.records)  # which reads them anew each time
    by = by or default_column(columns, kind)
    group = column_of(columns, by, kind)
    measuring = partial(_measuring, found, group[0], device, model, data)
    remarks = say_best(load_influences(found.folder, group))
    if race is not None:
        from fedgen.evaluation.runs.evaluate_run import race as decide

        outcome = decide(found, *measuring(most), race, width, most, group[0].aggregate)
        group, remarks = outcome.records, [outcome.words]
    ranking = rank(group, found.folder)
    if quote is not None:
        remarks.append(_quoted(found, *measuring(quote), ranking[0].round, group[0].aggregate, quote))
    given = None if against is None else compare(records, by, against)
    compared = inversions_found(records) if given is None else comparison_table(given, records)
    title = f"{found.folder} by {by}, {say_directions(columns[by])}, ± standard error; {say_kind(group[0])}"
    console.print(ranking_table(ranking, by, title))
    console.print(compared)
    for remark in [*remarks, *remarks_on(records, by)]:
        console.print(remark, soft_wrap=True)
    best = next((entry.checkpoint for entry in ranking if entry.checkpoint), None)
    console.print(str(best) if best is not None else "no checkpoint of these rounds was kept", soft_wrap=True)


def _quoted(
    run: "Run", module: "LightningModule", evaluator: "Evaluator", round: int, aggregate: str, number: int
) -> str:
    from fedgen.evaluation.records import say_interval
    from fedgen.evaluation.runs.evaluate_run import quote
    from fedgen.evaluation.tables.table import say_value
    from fedgen.scores.rankings import Z

    found = quote(run, module, evaluator, round, aggregate)
    ends = [found.value + side * Z * found.generated_error for side in (-1, 1)]
    fresh = f"On {number:,} fresh {found.noun}, which had no part in the choice, round {round} has {found.name}"
    return f"{fresh} {say_value(found)} (95 % on these reals: {say_interval(*ends)}): the value to quote."


def _measuring(
    run: "Run", record: "ScoreRecord", device: str, model: str | None, data: str | None, number: int
) -> "tuple[LightningModule, Evaluator]":
    """A run's model, and the evaluator of one column of its first split with so many generated images."""
    from fedgen.evaluation.evaluate import Evaluator

    module, clients = model_and_clients(run.folder, model, data, device, record.sampling)
    score = {"name": record.score, **record.score_settings}
    options: dict[str, Any] = {"seed": record.seed, "weights": record.weights, "device": device}
    evaluator = Evaluator(clients, [record.embedding], number, [score], **options)
    made, split = evaluator.embeddings[0].fingerprint(), evaluator.splits[0].name
    if made != record.embedding_fingerprint or split != record.split:
        raise ValueError(
            f"new images would be scored on split {split!r} in {record.embedding} with weights {made}, but the scores"
            f" of {run.folder} are on {record.split!r} with {record.embedding_fingerprint}: choose another --by"
        )
    return module, evaluator


def remarks_on(records: "Sequence[ScoreRecord]", by: str) -> list[str]:
    """Return remarks on a column that checkpoints are chosen by: how models sampled, and whether a loss used it."""
    from fedgen.evaluation.marks import explained, strongest
    from fedgen.evaluation.records import by_column, say_sampling
    from fedgen.evaluation.runs.selection import unmarked

    group = by_column(records)[by]
    remarks = [f"{by}: {words}" for words in sorted({say_sampling(record.sampling) for record in group} - {""})]
    if strongest(group):
        others = unmarked(records, by)
        instead = f"Choose by {' or '.join(others)}" if others else "Score the checkpoints in another embedding"
        used = ", ".join(dict.fromkeys(name for record in group for name in record.optimised_on))
        remarks.append(f"{by} is in embedding {group[0].embedding}, and a training loss used {used}.")
        remarks += [*explained(group), f"{instead}: this choice follows what the model was optimised on."]
    return remarks


def ranking_table(ranking: "Sequence[Ranked]", by: str, title: str) -> "Table":
    from fedgen.evaluation.records import say_error, say_number
    from fedgen.evaluation.tables.table import new_table

    spread = any(entry.error_over_clients is not None for entry in ranking)
    headings = ("rank", "round", by, *(["± over clients"] if spread else []), "checkpoint")
    table = new_table(title, headings, left=headings)
    for rank, entry in enumerate(ranking, 1):
        value = f"{say_number(entry.value, entry.standard_error)} {entry.mark}".rstrip()
        error = "" if entry.error_over_clients is None else say_error(entry.error_over_clients)
        name = entry.checkpoint.name if entry.checkpoint else "not kept"
        table.add_row(str(rank), str(entry.round), value, *([error] if spread else []), name)
    return table


def evaluate(arguments: Sequence[str]) -> int:
    """`fedgen evaluate RUN NAME[,NAME ...]`, or `fedgen evaluate --generated PATH --clients PATH ...`."""
    if any(argument.split("=")[0] in FLAGS for argument in arguments):
        return evaluate_stored(arguments)
    if set(arguments) & set(ASK):
        print(HELP, end="")
        return 0
    parser = CommandParser(prog="fedgen evaluate")
    parser.add_function_arguments(evaluate_checkpoints, as_positional=True, skip={"embeddings"})
    parser.add_argument("embeddings", nargs="?", help=EMBEDDINGS)
    if not arguments:
        parser.usage = HELP.split("\n\n")[0].removeprefix("usage: ")
        parser.error("say what to score: --generated and --clients (or --reference), or a run's folder")
    if ASK_ALL in arguments:
        print(f"Two forms.\n\n1. Any images, without a run:\n\n{build_parser().format_help()}")
        print("2. A run's checkpoints:\n")
    settings = parser.parse_args(with_flags(evaluate_checkpoints, arguments))
    evaluate_checkpoints(**vars(parser.instantiate(settings)))
    return 0


def audit_models(
    run: Path,
    rounds: str | None = None,
    signal: SignalName | None = None,
    draws: int = 4,
    pairs: int | None = None,
    nearest: bool = False,
    embedding: str | None = None,
    num_images: int = 5000,
    cache: Path | None = None,
    device: str = "cpu",
    model: str | None = None,
    data: str | None = None,
) -> None:
    """Attacks a run's models by membership inference: can it tell each client's training images from held-out ones?

    Prints a table with 95 % intervals, and writes membership.json into the run folder.

    Args:
        run: the run folder.
        rounds: comma-separated rounds of the checkpoints to attack; the last one by default.
        signal: what the attack uses; by default the first that the model has: a GAN's critic, the model's own loss, its
            likelihood, distances to generated images.
        draws: draws of noise per loss.
        pairs: most training images of a client, with as many held-out ones; all by default.
        nearest: also write nearest.png, the generated images that are nearest to training images.
        embedding: embedding for distances; efficientnet-lite0 by default, identity for points.
        num_images: number of generated images, for distances.
        cache: folder for cached features of training images, for --nearest.
        device: device for the model, e.g. cuda.
        model: for a run trained in Python: my_module:make_model, as in `fedgen evaluate`.
        data: its FederatedDataModule in the same way: my_module:make_data.
    """
    from fedgen.evaluation.panels import require_device
    from fedgen.evaluation.runs.scores_file import MEMBERSHIP, NEAREST, RECIPE, read_recipe

    require_device(device)
    chosen = rounds_in(rounds)
    if model is None and data is None:
        read_recipe(run / RECIPE)
    from fedgen.embeddings import FeatureCache
    from fedgen.evaluation.audit.membership import audit_run, draw_nearest, membership_table
    from fedgen.progress import make_console

    module, clients = model_and_clients(run, model, data, device, {})
    shared: dict[str, Any] = {"embedding": embedding, "num_images": num_images, "seed": clients.seed}
    audits = audit_run(run, module, clients, chosen, signal=signal, draws=draws, pairs=pairs, **shared)
    console = make_console()
    for one in audits:
        console.print(membership_table(one))
    console.print(f"written: {run / MEMBERSHIP}", soft_wrap=True)
    if nearest:
        draw_nearest(run, module, clients, chosen, cache=FeatureCache(cache) if cache else None, **shared)
        console.print(f"written: {run / NEAREST}", soft_wrap=True)


def report(arguments: Sequence[str]) -> int:
    parser = PlainCommandParser(prog="fedgen report", description=REPORT)
    parser.add_argument(
        "runs",
        nargs="+",
        type=Path,
        metavar="RUN",
        help="a run folder; a folder of `fedgen reproduce`; the folder or file of `fedgen evaluate --output`",
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="the page; by default report.html in the run's folder, or here for several runs",
    )
    parser.add_argument(
        "--over_time",
        type=Path,
        metavar="FILE",
        help="also plot scores over simulated seconds, as PNG; for runs with speeds (docs/asynchronous.md)",
    )
    parser.add_argument(
        "--column", metavar="NAME", help="the score that --over_time plots; by default kid_all, else fid_all"
    )
    settings = parser.parse_args(list(arguments))
    if settings.column and settings.over_time is None:
        parser.error("--column names the score that --over_time FILE plots: give both, or neither")
    from fedgen.reports.page import write_report

    if settings.over_time is not None:
        from fedgen.reports.figures.curves import draw_over_time

        print(f"over time: {draw_over_time(settings.runs, settings.over_time, settings.column)}")
    print(f"report: {write_report(settings.runs, settings.output)}")
    return 0
