"""Networks and recipes in other forms: `fedgen convert`; `fedgen deploy`, for clients on their own machines; and
`fedgen supernode`, Flower's SuperNode, which runs only the apps that its owner allowed by SHA-256.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedgen.flags import PlainCommandParser
from fedgen.recipe.recipe_files import find_recipe, suggest_recipe

OF_MANY = ("owner_folders", "owner_column", "test_root")  # settings of data of many owners
SHORTEST, LONGEST = 0.01, 60  # seconds between two looks, as Flower's own setting takes them
SUPERNODE = """\
Starts flower-supernode so that it runs only apps whose archive has one of these SHA-256 hashes. It unpacks no other
app and answers the server with an error. `flwr build`, on the machine that starts runs, writes an app's archive: unzip
it, read it, then `sha256sum` it. All other options are passed to flower-supernode."""


def deploy_recipe(
    recipe: Path,
    folder: Path,
    clients: int | None = None,
    data: str | None = None,
    settings: dict[str, Any] | None = None,
    export: Path | None = None,
    overwrite: bool = False,
) -> None:
    """Writes a Flower app that trains a recipe on clients' own machines: `flwr run FOLDER` starts it.

    The app has the recipe's model, strategy and the scores that clients can compute; its README says how to start
    SuperLink and SuperNodes.

    Args:
        recipe: a recipe's name or path, as for `fedgen fit`.
        folder: where to write the app.
        clients: number that the server waits for; by default those of --export, else the recipe's cohort or two.
        data: class of each client's data, e.g. ImageFolder, fedgen.data.HuggingFace or your my_kit.Scans, or a function
            that returns a data set; by default the recipe's if it is yours or reads a folder, else ImageFolder. Each
            client's node says where its data are.
        settings: arguments of that class, e.g. '{"channels": 1, "size": 32}'.
        export: folder for the recipe's simulated clients, one folder each, to try the app with.
        overwrite: replace the app if it exists.
    """
    if clients is not None and clients < 1:
        raise ValueError(f"clients={clients}: expected at least 1")
    if (folder / "pyproject.toml").exists() and not overwrite:
        raise FileExistsError(f"{folder} holds an app; choose another folder, or replace it with --overwrite")
    if (path := find_recipe(str(recipe))) is None:
        raise FileNotFoundError(f"there is no recipe {recipe}{suggest_recipe(recipe.name)}")
    recipe = path
    from fedgen.evaluation.runs.recipe_data import load_federation
    from fedgen.flower.app.recipe import read_settings, without_unmeasured
    from fedgen.flower.app.write_app import export_clients, write_app
    from fedgen.io.files import require_writable
    from fedgen.progress import make_console

    found, unmeasured = without_unmeasured(read_settings(recipe))
    strategy = found["trainer"].get("strategy")
    options = strategy.get("init_args") or {} if isinstance(strategy, Mapping) else {}
    cohort = 0 if options.get("sampler") else options.get("cohort_size") or 0
    if clients is not None and clients < cohort:
        raise ValueError(
            f"clients={clients} is below the recipe's cohort_size={cohort}: pass --clients {cohort} or more, or set"
            f" trainer.strategy.init_args.cohort_size in {recipe} to at most {clients}"
        )
    chosen = choose_data(recipe, found, data, settings)
    federation = None if export is None else load_federation(recipe, [])
    number = max(2, cohort) if federation is None else len(federation.clients)
    if federation is not None and clients not in (None, number):
        raise ValueError(
            f"clients={clients}, but --export writes the {number} clients of {recipe}: omit --clients, or change the"
            " recipe's partition"
        )
    require_writable(folder)
    if federation is not None and export is not None:
        export_clients(federation, export)
    clients = clients or number
    simulation = "" if export is None else str(export.absolute())
    modules = write_app(found, chosen, folder, clients, simulation, federation.examples.classes if federation else ())
    console = make_console()
    console.print(f"{folder}: an app for {clients} clients; see its README.md")
    if modules:
        names = ", ".join(map(str, modules))
        console.print(f"included for the server and all clients: {names}", soft_wrap=True)
    if unmeasured:
        names = ", ".join(unmeasured)
        console.print(f"left out, because clients would have to send images or features: {names}")
    if export is not None:
        console.print(f"{export}: the images of {clients} clients")


def choose_data(recipe: Path, found: Any, data: str | None, settings: dict[str, Any] | None) -> dict[str, Any]:
    """The class of the clients' data and its settings; ValueError for a set of the kit that reads no folder."""
    from fedgen.evaluation.runs.recipe_data import load_federation
    from fedgen.flower.app.recipe import without_place
    from fedgen.flower.client.local_data import is_of_kit, place_of, takes_place

    if data is not None:
        chosen = {"class_path": data if "." in data else f"fedgen.data.{data}", "init_args": dict(settings or {})}
        place_of(chosen)
        return chosen
    own = ((found["data"] or {}).get("init_args") or {}).get("data") or {}
    if not own or (is_of_kit(own) and not takes_place(own)):  # a set that reads no folder, whose clients are simulated
        channels = int(load_federation(recipe, []).examples.inputs.shape[1])
        return {"class_path": "fedgen.data.ImageFolder", "init_args": {"channels": channels, **(settings or {})}}
    kept = dict(without_place(own).get("init_args") or {})
    if is_of_kit(own):
        kept = {name: value for name, value in kept.items() if name not in OF_MANY}
    return {"class_path": own["class_path"], "init_args": {**kept, **(settings or {})}}


def supernode(arguments: Sequence[str]) -> None:
    """The command; what it does not know are options of flower-supernode."""
    parser = PlainCommandParser(prog="fedgen supernode", description=SUPERNODE, allow_abbrev=False)
    parser.add_argument("--app", action="append", required=True, metavar="SHA256", help="app to allow; repeatable")
    parser.add_argument(
        "--look", type=float, metavar="SECONDS", help="time between checks for messages (3 by default, as in Flower)"
    )
    own, rest = parser.parse_known_args(arguments)
    for pin in own.app:
        if not re.fullmatch("[0-9a-fA-F]{64}", pin):
            raise ValueError(f"--app {pin}: a SHA-256 has 64 hexadecimal digits, as `sha256sum` prints them")
    if own.look is not None and not SHORTEST <= own.look <= LONGEST:
        raise ValueError(f"--look {own.look:g}: give seconds from {SHORTEST} to {LONGEST}")
    if any(one.split("=")[0] == "--trusted-entities" for one in rest):
        raise ValueError(
            "--app and --trusted-entities cannot be combined: allow apps by hash or by signature, or start a SuperNode"
            " for each"
        )
    try:
        from fedgen.flower.client.pinned_apps import run_pinned
    except ModuleNotFoundError as error:
        raise ImportError("fedgen supernode needs Flower: pip install 'fedgen[flower]'") from error
    run_pinned({pin.lower() for pin in own.app}, rest, own.look)


def convert(source: Path, target: Path, half: bool = False, overwrite: bool = False) -> None:
    """Converts a StyleGAN2 to safetensors, from NVIDIA's network pickle (without running it) or a run's checkpoint.

    The target holds the generator, its moving average and the discriminator with their settings:
    `StyleGAN2.from_file(target).sample(16)`, or `weights: target` in a recipe.

    Args:
        source: the pickle of stylegan2-ada-pytorch, e.g. ffhq.pkl; or a checkpoint of `fedgen fit`, .ckpt.
        target: the file to write, e.g. ffhq.safetensors.
        half: round weights to float16, for half the size.
        overwrite: replace the target if it exists.
    """
    if target.suffix != ".safetensors":
        raise ValueError(f"{target} must end in .safetensors, e.g. {target.with_suffix('.safetensors').name}")
    if target.exists() and not overwrite:
        raise FileExistsError(f"{target} exists; choose another name, or replace it with --overwrite")

    from fedgen.io.files import in_bytes, require_writable
    from fedgen.models.stylegan2.network_file import read_official_networks as read
    from fedgen.progress import make_console

    require_writable(target.parent)
    if source.suffix == ".ckpt":
        from fedgen.models.stylegan2.stylegan2 import read_trained_networks as read
    found = read(source)
    found.write(target, half)
    console = make_console()
    for name, network in found.networks.items():
        settings = network.settings
        classes = "" if settings["num_classes"] is None else f", {settings['num_classes']} classes"
        shape = f"{settings['image_size']} x {settings['image_size']}, {settings['channels']} channels{classes}"
        console.print(f"{name}: {sum(p.numel() for p in network.parameters()):,} parameters, {shape}")
    console.print(f"{target}: {in_bytes(target.stat().st_size)}")
