"""`fedgen evaluate --generated ...`: scores of anybody's image folders and .npz files, without a recipe or a model."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import yaml
from jsonargparse import ArgumentParser
from jsonargparse.typing import PositiveInt

from fedgen import __version__
from fedgen.evaluation.names import NAMES, SUBSET_SIZE, Peer
from fedgen.flags import CommandParser

if TYPE_CHECKING:  # the parser is made, and help printed, without torch
    from rich.console import Console

    from fedgen.evaluation import ScoreRecord, StoredEvaluation
    from fedgen.evaluation.stored.stored_sets import Named

FLAGS = ("--generated", "--clients", "--reference")
OUTPUT, REFERENCE_OUTPUT = "scores.json", "reference.json"  # two names, so that one folder holds both
PATHS = ("generated", "clients", "reference", "weights", "cache", "output", "save_statistics", "save_features")
DESCRIPTION = (
    "Score stored images: a generated set against clients (each client's score, avg, all, worst), or against one"
    " reference with the numbers that torch-fidelity or clean-fid print. Every set is a folder of images, or an .npz or"
    " .npy file of images (uint8, four axes), of volumes or series (floats, five or three axes; also a folder of .npy"
    " files), of features [N, D] (under 'features' or alone) or of statistics (a mean and a covariance, for fid only)."
    " Everything is checked before anything is embedded."
)


def build_parser() -> ArgumentParser:
    parser = CommandParser(prog="fedgen evaluate", description=DESCRIPTION)
    add = parser.add_argument
    add("--generated", required=True, metavar="PATH", help="the generated set")
    add("--clients", nargs="+", metavar="PATH", help="the clients, e.g. data/*; named after their paths")
    add("--reference", metavar="PATH", help="one reference set instead of clients")
    add(
        "--scores",
        metavar="NAMES",
        help="comma-separated names (fid,kid by default, fid if a set is statistics), or with options:"
        " '[fid, {name: precision, k: 3}]'; an unknown name, such as '?', lists all",
    )
    add(
        "--aggregates",
        default="",
        metavar="NAMES",
        help="power means beside avg, all and worst, e.g. power-2, which gives badly served clients more weight",
    )
    add(
        "--client_weights",
        choices=["examples", "uniform"],
        default="examples",
        help="weights of clients in avg and all: by number of images, or equal",
    )
    add("--counts", nargs="+", default=[], metavar="NAME=N", help="image counts of statistics that do not store them")
    add(
        "--preset",
        choices=[*NAMES, *get_args(Peer)],
        help="with --clients: a score with its own embedding (fid, kid, fd-dinov2, cmmd, is, fcd), instead of"
        " --embedding and --scores; with --reference: the tool to match (torch-fidelity by default, or clean-fid)",
    )
    add(
        "--kid_subset_size",
        type=PositiveInt | None,
        help=f"with --reference: images in each of torch-fidelity's 100 subsets ({SUBSET_SIZE} by default)",
    )
    add(
        "--embedding",
        metavar="NAME",
        help="with --clients: efficientnet-lite0 by default, with weights included; with --reference:"
        " inception-v3-compat, the published one, whose weights (95 MB) are downloaded once (offline: --weights)",
    )
    add("--weights", metavar="FILE", help="local file with the embedding's weights")
    add("--device", default="cpu", help="device for embedding, e.g. cuda")
    add(
        "--optimised_on",
        default="",
        metavar="NAMES",
        help="comma-separated embeddings that a loss of the generator's training used; their scores are marked",
    )
    add("--batch_size", type=PositiveInt, default=64, help="images to read and embed at once")
    add("--cache", metavar="DIR", help="folder for cached features, keyed by the files' bytes")
    add(
        "--resize",
        type=PositiveInt | None,
        metavar="N",
        help="fit every image to N x N (bicubic, antialiased, centre); without it all images of a set need one size,"
        " except with clean-fid",
    )
    add("--recursive", action="store_true", help="include images in subfolders (always with clean-fid)")
    add("--skip_unreadable", action="store_true", help="leave out unreadable files, and record which")
    add(
        "--output",
        metavar="PATH",
        help="scores and settings as JSON: a file that ends in .json, or a folder; by default"
        f" {OUTPUT} with --clients, with a .png figure of the same name, and {REFERENCE_OUTPUT} with"
        " --reference",
    )
    add("--overwrite", action="store_true", help="replace files of an earlier evaluation")
    add("--save_statistics", metavar="DIR", help="folder for mu and sigma of every set, in pytorch-fid's format")
    add("--save_features", metavar="DIR", help="folder for features of every set of images")
    return parser


def evaluate_stored(arguments: Sequence[str]) -> int:
    settings = _parse(arguments)
    from fedgen.evaluation.stored.stored_evaluation import files_in, save_features, save_statistics
    from fedgen.evaluation.stored.stored_sets import FEATURES_OF, STATISTICS_OF
    from fedgen.progress import make_console

    targets = _targets(settings)
    evaluation = _evaluation(settings)
    kinds = ((settings.save_statistics, STATISTICS_OF), (settings.save_features, FEATURES_OF))
    saved = [path for folder, kind in kinds if folder for _, path in files_in(evaluation, folder, kind)]
    _refuse_existing(saved, settings.overwrite)
    _check_folders(settings, evaluation)
    records = evaluation.records()
    written = [_write_scores(settings, evaluation, records)]
    console = make_console(emoji=False)
    _report(evaluation, records, console)
    if len(targets) > 1:
        from fedgen.reports.figures import draw_clients

        written.append(draw_clients(records, targets[1]))
    written += save_statistics(evaluation, settings.save_statistics) if settings.save_statistics else []
    written += save_features(evaluation, settings.save_features) if settings.save_features else []
    for path in written:
        console.print(f"written: {path}", soft_wrap=True)
    return 0


def _parse(arguments: Sequence[str]) -> Any:
    """The settings, paths as `Path`; with that for a type, jsonargparse would read their text as YAML."""
    settings = build_parser().parse_args(list(arguments))
    name = REFERENCE_OUTPUT if settings.reference else OUTPUT
    given = Path(settings.output or name)
    settings.output = str(given / name if given.suffix not in (".json", ".png") else given)
    for name in PATHS:
        given = getattr(settings, name)
        if given is not None:
            setattr(settings, name, [Path(part) for part in given] if isinstance(given, list) else Path(given))
    return settings


def _targets(settings: Any) -> list[Path]:
    if (settings.clients is None) == (settings.reference is None):
        raise ValueError("give either --clients (one path each) or --reference (one path)")
    if settings.clients and (settings.preset in get_args(Peer) or settings.kid_subset_size):
        raise ValueError("--preset torch-fidelity or clean-fid, and --kid_subset_size, are for --reference")
    if settings.reference and settings.preset in NAMES:
        raise ValueError(f"--preset {settings.preset} needs --clients; one client is enough")
    if settings.reference and settings.aggregates:
        raise ValueError("--aggregates are means over --clients; one --reference has none")
    if settings.preset == "clean-fid" and settings.kid_subset_size:
        raise ValueError("--kid_subset_size is for torch-fidelity's kid; clean-fid draws its subsets without a seed")
    if settings.save_statistics and settings.save_statistics == settings.save_features:
        raise ValueError("--save_statistics and --save_features use the same file names; give two folders")
    if settings.output.suffix == ".png" or settings.output.is_dir():
        raise ValueError(f"--output {settings.output} must be a file for JSON, e.g. scores.json")
    targets = [settings.output, *([settings.output.with_suffix(".png")] if settings.clients else [])]
    _refuse_existing(targets, settings.overwrite)
    return targets


def _check_folders(settings: Any, evaluation: "StoredEvaluation") -> None:
    """Makes the folders to write into, once nothing else is wrong and before any long work."""
    from fedgen.io.files import require_writable

    place = settings.output.parent.resolve()
    for path in [stored.path for stored in evaluation.sets if stored.path.is_dir() and settings.clients]:
        if place == path.resolve() or (settings.recursive and path.resolve() in place.parents):
            raise ValueError(f"--output {settings.output} lies among the images of {path}; choose another folder")
    for folder in (settings.output.parent, settings.save_statistics, settings.save_features):
        if folder is not None:
            require_writable(folder)


def _refuse_existing(paths: Sequence[Path], overwrite: bool) -> None:
    existing = next((path for path in paths if path.exists()), None)
    if existing is not None and not overwrite:
        raise ValueError(f"{existing} exists; choose another place, or pass --overwrite")


def _evaluation(settings: Any) -> "StoredEvaluation":
    from fedgen.embeddings import FeatureCache
    from fedgen.evaluation import PeerEvaluation, Reading, StoredEvaluation, StoredOptions
    from fedgen.evaluation.panels import require_device

    reading = Reading(settings.resize, settings.recursive, settings.skip_unreadable)
    options = StoredOptions(
        scores=scores_in(settings.scores) if settings.scores else None,
        weights=settings.client_weights,
        reading=reading,
        counts=_counts(settings.counts),
        batch_size=settings.batch_size,
        device=require_device(settings.device),
        cache=FeatureCache(settings.cache) if settings.cache else None,
        aggregates=names_in(settings.aggregates),
        preset=settings.preset if settings.clients else None,
        optimised_on=names_in(settings.optimised_on),
    )
    embedding, weights = _embedding(settings.embedding, settings.weights)
    if settings.clients:
        return StoredEvaluation(settings.generated, settings.clients, embedding, weights, options)
    preset: Peer = settings.preset or "torch-fidelity"
    both, size = (settings.generated, settings.reference), settings.kid_subset_size or SUBSET_SIZE
    return PeerEvaluation(*both, preset, embedding, weights, options, size)


def _embedding(text: str | None, weights: Path | None) -> "tuple[Named | None, Path | None]":
    """The embedding of a text and its weights, which one that is given by options has in it."""
    given = embeddings_in(text)
    if len(given) > 1:
        raise ValueError(f"--embedding takes one embedding, got {text}")
    if given and isinstance(given[0], dict):
        from fedgen.embeddings import load_embedding

        return load_embedding(given[0], weights), None
    return text, weights


def names_in(text: str | None) -> list[str]:
    """The names of a text with commas between them; none for an empty one."""
    return [name.strip() for name in text.split(",")] if text else []


def rounds_in(text: str | None) -> list[int] | None:
    """The rounds of a text with commas between them, with or without brackets; None for none."""
    if text is None:
        return None
    words = text.strip().removeprefix("[").removesuffix("]").replace(",", " ").split()
    if not words or not all(word.isdecimal() for word in words):
        raise ValueError(f"--rounds {text!r}: give comma-separated rounds, e.g. 39,79")
    return list(map(int, words))


def scores_in(text: str) -> list[Any]:
    """The scores of a text: names with commas between, or a list in YAML, whose items may have options."""
    return _listed(text, "--scores takes fid,kid or '[fid, {name: precision, k: 3}]'")


def embeddings_in(text: str | None) -> list[Any]:
    """The embeddings of a text: names or class paths with commas between, or a list in YAML, with options."""
    example = "'{class_path: my_package.MyEmbedding, init_args: {width: 64}}'"
    return _listed(text, f"embeddings are comma-separated names, or {example}")


def _listed(text: str | None, expected: str) -> list[Any]:
    if text is None or not text.strip().startswith(("[", "{")):
        return list(names_in(text))
    from fedgen.io.files import parse_yaml

    try:
        found = parse_yaml(text)
    except (yaml.YAMLError, ValueError) as error:
        raise ValueError(f"{expected}, got {text!r}") from error
    return found if isinstance(found, list) else [found]


def _counts(given: Sequence[str]) -> dict[str, float]:
    counts = {}
    for text in given:
        name, _, number = text.rpartition("=")
        if not name or not number.isdigit():
            raise ValueError(f"--counts takes NAME=N, e.g. hospital=5000, got {text!r}")
        counts[name] = float(number)
    return counts


def _report(evaluation: "StoredEvaluation", records: "Sequence[ScoreRecord]", console: "Console") -> None:
    from fedgen.evaluation import PeerEvaluation, client_tables, peer_table
    from fedgen.evaluation.stored.stored_images import LISTED

    if isinstance(evaluation, PeerEvaluation):
        console.print(peer_table(evaluation, records))
    else:
        for table in client_tables(evaluation, records, console.width):
            console.print(table)
    if evaluation.skipped:
        console.print("left out:", soft_wrap=True)
        for reason in evaluation.skipped[:LISTED]:
            console.print(f"  {reason}", soft_wrap=True)
        if len(evaluation.skipped) > LISTED:
            console.print(f"  and {len(evaluation.skipped) - LISTED} more, listed in the JSON file")


def _write_scores(settings: Any, evaluation: "StoredEvaluation", records: "Sequence[ScoreRecord]") -> Path:
    from fedgen.io.files import write_json

    sets = [
        {"name": stored.name, "path": str(stored.path), "kind": stored.kind, "count": count}
        for stored, count in zip(evaluation.sets, evaluation.counts())
    ]
    chosen = {
        name: list(map(str, value)) if isinstance(value, list) else str(value) if isinstance(value, Path) else value
        for name, value in vars(settings).items()
    }
    content = {
        "fedgen": __version__,
        "settings": chosen,
        "sets": sets,
        "skipped": evaluation.skipped,
        "records": [record.to_json() for record in records],
    }
    write_json(settings.output, content)
    return settings.output
