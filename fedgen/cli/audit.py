"""`fedgen audit RUN`: what a run's models tell of the images that they were trained on."""

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from fedgen.cli.stored import rounds_in
from fedgen.evaluation.names import SignalName
from fedgen.flags import PlainCommandParser

DESCRIPTION = (
    "Attack a run's models by membership inference: how well does somebody who has a model tell each client's training"
    " images from its held-out ones? A table with 95 % intervals, and membership.json in the run folder; with --nearest"
    " also a picture of the generated images that are nearest to training images, nearest.png."
)


def build_parser() -> PlainCommandParser:
    """The command's arguments."""
    parser = PlainCommandParser(prog="fedgen audit", description=DESCRIPTION)
    add = parser.add_argument
    add("run", type=Path, metavar="RUN", help="the run folder")
    add("--rounds", metavar="N,N", help="rounds of the checkpoints, with commas between; the last one by default")
    add(
        "--signal",
        choices=get_args(SignalName),
        help="what the attack looks at; by default a GAN's critic, else the model's own loss, its likelihood, or"
        " distances to generated images: the first that the model has",
    )
    add("--draws", type=int, default=4, metavar="N", help="of the noise of losses; 4 by default")
    add(
        "--pairs",
        type=int,
        metavar="N",
        help="the most training images of a client, and as many others; all by default",
    )
    add("--nearest", action="store_true", help="also draw the generated images that are nearest to training images")
    add("--embedding", metavar="NAME", help="of distances; efficientnet-lite0 by default, identity for points")
    add("--num_images", type=int, default=5000, metavar="N", help="generated images, for distances; 5,000 by default")
    add("--cache", type=Path, metavar="DIR", help="keeps the training images' features, for --nearest")
    add("--device", default="cpu", metavar="NAME", help="where the model computes, e.g. cuda; cpu by default")
    add("--model", metavar="M", help="of a run trained in Python: my_module:make_model, as for `fedgen evaluate`")
    add("--data", metavar="D", help="likewise its FederatedDataModule, my_module:make_data")
    return parser


def audit(arguments: Sequence[str]) -> int:
    """Attacks a run's checkpoints and prints a table of each."""
    settings = build_parser().parse_args(list(arguments))
    from fedgen.evaluation.panels import require_device
    from fedgen.evaluation.runs.scores_file import RECIPE, read_recipe

    require_device(settings.device)
    settings.rounds = rounds_in(settings.rounds)
    if settings.model is None and settings.data is None:
        read_recipe(settings.run / RECIPE)
    _attack(settings)
    return 0


def _attack(settings: Namespace) -> None:
    from fedgen.cli.run import model_and_clients
    from fedgen.embeddings import FeatureCache
    from fedgen.evaluation.audit.membership import audit_run, membership_table
    from fedgen.evaluation.audit.nearest_images import draw_nearest
    from fedgen.evaluation.runs.scores_file import MEMBERSHIP, NEAREST
    from fedgen.progress import make_console

    module, clients = model_and_clients(settings.run, settings.model, settings.data, settings.device, {})
    names = ("signal", "draws", "embedding", "num_images", "pairs")
    options: dict[str, Any] = {name: getattr(settings, name) for name in names}
    audits = audit_run(settings.run, module, clients, settings.rounds, **options, seed=clients.seed)
    console = make_console()
    for one in audits:
        console.print(membership_table(one))
    console.print(f"written: {settings.run / MEMBERSHIP}", soft_wrap=True)
    if settings.nearest:
        cache = None if settings.cache is None else FeatureCache(settings.cache)
        options = {"embedding": settings.embedding, "num_images": settings.num_images, "cache": cache}
        draw_nearest(settings.run, module, clients, settings.rounds, **options, seed=clients.seed)
        console.print(f"written: {settings.run / NEAREST}", soft_wrap=True)
