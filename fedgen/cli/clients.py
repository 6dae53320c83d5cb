"""`fedgen clients RECIPE`: a partition, before anything is trained on it."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedgen.clients.heterogeneity.entropy_options import DEFAULT, EntropyOptions
from fedgen.flags import CommandParser, with_flags
from fedgen.recipe.recipe_files import find_recipe

if TYPE_CHECKING:  # the parser is made, and help printed, without torch
    from fedgen.clients import FederatedDataModule
    from fedgen.clients.heterogeneity.heterogeneity import Heterogeneity
    from fedgen.evaluation.tables.partition_table import PartitionSummary

DESCRIPTION = (
    "Show how a recipe's partition assigns data to clients, and how different the clients are. Override settings as"
    " in `fedgen fit`: --data.SETTING VALUE and --seed_everything N, e.g. --data.partition.alpha 0.1, or"
    " --data.partition IID --data.partition.num_clients 10. A run trained in Python has no recipe: name its"
    " FederatedDataModule by --data my_module:make_data or --data train.py:make_data."
)
PICTURE, NUMBERS = "clients.png", "clients.json"
OF_RECIPES = ("--data", "--seed_everything")


def look_at_clients(
    recipe: Path,
    embedding: str | None = None,
    num_images: int = 5000,
    max_clients: int = 200,
    controls: int = 3,
    output: Path | None = None,
    cache: Path = Path("checkpoints/features"),
    device: str = "cpu",
    entropy: bool = False,
    vae: EntropyOptions = DEFAULT,
    overrides: Sequence[str] = (),
) -> None:
    """Shows how a recipe's partition assigns data to clients, and how different these are: tables, a figure, JSON.

    It trains nothing, and reads only `data` and `seed_everything` of the recipe.

    Args:
        recipe: a recipe's name or path, or a run folder; for a run trained in Python also give --data
            my_module:make_data.
        embedding: features to compare clients by: efficientnet-lite0-32 by default, identity for points.
        num_images: images to measure in all, drawn from clients in proportion to their size.
        max_clients: most clients to measure; a random sample if there are more.
        controls: random partitions of the same images that every measure is compared with.
        output: folder for the figure and the numbers; checkpoints/clients-RECIPE by default.
        cache: folder for cached features.
        device: device for embedding and fitting, e.g. cuda.
        entropy: also measure client entropy, by autoencoders fitted to the images of 50 clients.
        vae: settings of these autoencoders.
        overrides: settings of the recipe, each as --data.SETTING=VALUE or --seed_everything=N; or --data=NAME.
    """
    from fedgen.evaluation.panels import require_device
    from fedgen.evaluation.runs.recipe_data import load_federation

    require_device(device)
    recipe = recipe if recipe.is_dir() else find_recipe(str(recipe)) or recipe
    data = load_federation(recipe, overrides)

    from fedgen.clients.heterogeneity.heterogeneity import measure_clients
    from fedgen.embeddings import FeatureCache, load_embedding
    from fedgen.evaluation.tables.partition_table import PartitionSummary
    from fedgen.io.files import require_writable

    folder = require_writable(output or Path("checkpoints") / f"clients-{recipe.stem}")
    network = load_embedding(embedding or ("efficientnet-lite0-32" if data.examples.is_images else "identity"))
    sizes, summary = (num_images, max_clients, controls), PartitionSummary(data)
    found = measure_clients(data.everyone, network, *sizes, data.seed, FeatureCache(cache), device)
    if entropy:
        from fedgen.clients.heterogeneity.client_entropy import with_entropy

        found = with_entropy(found, data.everyone, vae, seed=data.seed, device=device)
    _report(data, summary, found, folder)


def _report(data: "FederatedDataModule", summary: "PartitionSummary", found: "Heterogeneity", folder: Path) -> None:
    from fedgen.evaluation.tables.partition_table import partition_tables, remarks_on
    from fedgen.io.files import write_json
    from fedgen.progress import make_console
    from fedgen.reports.figures.partition_picture import draw_partition

    console = make_console()
    for table in partition_tables(summary, found):
        console.print(table)
    for remark in [*remarks_on(summary, found), *same_network(summary, found.embedding)]:
        console.print(remark)
    write_json(folder / NUMBERS, {**summary.to_json(), "heterogeneity": found.to_json()})
    picture = draw_partition(data.everyone, summary, found, folder / PICTURE, data.seed)
    console.print(f"written: {picture}, {folder / NUMBERS}", soft_wrap=True)


def same_network(summary: "PartitionSummary", embedding: str) -> list[str]:
    """A line, if the partition used the network that clients are measured in."""
    from fedgen.embeddings import network_of

    own = summary.partition.get("embedding")
    name = own.get("name") if isinstance(own, dict) else own
    if not isinstance(name, str) or network_of(name) != network_of(embedding):
        return []
    used = f"{summary.partition['class']} assigned images by {name}"
    return [f"{used}, the same network as {embedding}: measure in another embedding, e.g. --embedding pixels"]


def clients(arguments: Sequence[str]) -> int:
    own, overrides = split_arguments(with_flags(look_at_clients, arguments))
    parser = CommandParser(prog="fedgen clients", description=DESCRIPTION)
    parser.add_function_arguments(look_at_clients, as_positional=True, skip={"overrides"})
    look_at_clients(**vars(parser.instantiate(parser.parse_args(own))), overrides=overrides)
    return 0


def split_arguments(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The command's own arguments, and those that change the recipe, each of these with "=" before its value."""
    own, recipe, waiting = list[str](), list[str](), False  # for the value of the last one
    for argument in arguments:
        if waiting:
            recipe[-1] += f"={argument}"
            waiting = False
        elif argument.split("=")[0].split(".")[0] in OF_RECIPES:
            recipe.append(argument)
            waiting = "=" not in argument
        else:
            own.append(argument)
    return own, recipe
