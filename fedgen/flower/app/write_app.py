"""A recipe as a folder that `flwr run` starts."""

import importlib.util
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from fedgen import __version__
from fedgen.class_paths import is_class_path
from fedgen.clients import FederatedDataModule
from fedgen.flower.app.recipe import deployable
from fedgen.flower.client.local_data import NUMBER, signature_of
from fedgen.flower.wire.answer_forms import RANGES
from fedgen.images import save_png
from fedgen.io.files import atomic_write
from fedgen.progress import track
from fedgen.recipe.recipe_files import texts_in

RESERVED = "federation"  # the app's own package
PACKAGE, RECIPE = RESERVED, "recipe.yaml"

PYPROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{name}"
version = "1.0.0"
description = "A fedgen recipe on Flower"
license = "Apache-2.0"
# fedgen[flower] is installed at the server and at each client by those who own them; what stands here, Flower would
# install from an index at every run, unless its dependency installation is disabled
dependencies = []

[tool.hatch.build.targets.wheel]
packages = ["{package}"]

[tool.flwr.app]
publisher = "fedgen"

[tool.flwr.app.components]
serverapp = "{package}.server:app"
clientapp = "{package}.client:app"

[tool.flwr.app.config]
clients = {clients}  # SuperNodes to wait for
wait = 600.0  # seconds to wait for them, at the start and when none of a round's answers
output = {output}  # run folder, on the server; the same folder resumes the run
ckpt-path = ""  # checkpoint to go on from: "" for the last, "previous" for the one before it, or a path
round-deadline = 0.0  # seconds a round's clients have to answer; 0: as long as they take
least-answers = 0.5  # part of the clients' weight that must answer a loss at the server; fewer end the run
most-images = 0  # that a client may say it has, by which it weighs; one that says more takes no part. 0: no bound
classes = {classes}  # in the labels' order, such as "cat, dog"; clients with others stay out. "": all that clients have
label-counts = ""  # images of each, such as "120, 40", by which conditional models draw labels; "": all alike
secure-aggregation = false  # true hides single updates, answers and statistics from the server, by SecAgg+
update-range = 0.0  # under secure aggregation: the largest change of an entry in a turn
statistics-epsilon = 0.0  # above 0: clients' statistics have noise, for (epsilon, delta) of each image
statistics-delta = 0.0  # well below one over the number of images
statistics-radius = 0.0  # features are clipped at this norm: choose it from public images
simulation-data = {simulation}  # under Flower's simulation node k takes the k-th folder in this one

# under secure aggregation: the largest entry of a statistic, a mean over a client's images; 0: chosen by the server
[tool.flwr.app.config.range]
{ranges}
"""

SIDE = '''\
"""The {side}'s app."""

from pathlib import Path

from fedgen.flower.app.apps import {side}_app

app = {side}_app(Path(__file__).with_name("{recipe}"))
'''

README = """\
# {name}

A fedgen recipe (`{package}/{recipe}`) on Flower. What leaves a client: its name, its number of images, their
shape, its classes' names and its release of fedgen; in a round its weights (not personal ones), its numbers of
images and iterations, whether its optimizers' settings moved, what optimizers or client algorithm average over
clients, and the means of what its steps logged; statistics of its images' features, its scores, and their
gradients in generated features; the type and text of its errors. With a `PrivateMean` in the recipe or
`statistics-epsilon` in the run's config (below) neither what steps logged nor errors' texts.

Try it on one machine, by Flower's simulation (in a checkout of fedgen `pip install ".[flower]" "flwr[simulation]"`;
needs `simulation-data` in pyproject.toml, or data that take `partition_id`):

    flwr run . local --stream --federation-config 'num-supernodes={clients} client-resources-num-cpus=1'

Deploy it. Each machine has fedgen {version} with its extra, from the wheel that `make dist` writes in a checkout:
`pip install "fedgen-{version}-py3-none-any.whl[flower]"`. On the server, with a certificate for its name:

    flower-superlink --host 0.0.0.0 --port 8000 --ssl-ca-certfile ca.crt --ssl-certfile server.pem \\
      --ssl-keyfile server.key --enable-supernode-auth --disable-runtime-dependency-installation

The port takes clients and, unless you give Flower accounts, also runs from whoever reaches it: let only the clients'
machines and yours reach it. Where you start runs, Flower's configuration (`flwr config list` shows where that is) names
the server:

    [superlink.federation]
    address = "SERVER:8000"
    root-certificates = "/path/to/ca.crt"

Each client makes a key, and you let it in by the public one:

    ssh-keygen -t ecdsa -b 384 -N "" -f client.key
    flwr supernode register client.key.pub federation

On each client, with the folder of its own images:

    flower-supernode --root-certificates ca.crt --superlink SERVER:8000 --auth-supernode-private-key client.key \\
      --node-config 'data-path="/my/images" name="hospital-a"'

or with a file on its disk that names a class of its own, and how its data are read:

    --node-config 'data-config="/my/data.yaml" name="hospital-a"'

    data: {{class_path: my_kit.Scans, init_args: {{root: /my/images}}}}
    num_workers: 2

A node's process that has PyTorch stays for the run's next messages; `worker-idle=60` in the node's config lets it wait
a minute for them, not ten, and 0 ends it with each message.

A client's owner who wants bounds on what runs may ask writes a policy on the client's own disk, and adds
`policy-path="/etc/fedgen.yaml"` to the node's config (docs/deployment-policy.md of fedgen).

Whoever may start runs chooses the code that runs on the clients' machines. A client's owner who wants to read it first
is given the app's archive, reads what is in it, and has the node run nothing else:

    flwr build                            # here, where runs are started; writes fedgen.{name}.1-0-0.*.fab
    unzip -d app *.fab; sha256sum *.fab   # at the client
    fedgen supernode --app THAT_SHA256 --root-certificates ca.crt --superlink SERVER:8000 ...

with the options of flower-supernode above. A changed app, be it by one setting here, is not unpacked, and the server is
told "The FAB could not be verified". (`--run-config` changes no app; the policy says what it may ask.) Apps of Flower's
hub can be required to be signed instead, by `flower-supernode --trusted-entities trusted.yaml`, a file that says
`fpk_ID: ssh-ed25519 ...` for each signer; a `flwr run` of a folder such as this one brings no signature, and is refused
there.

Then, from here:

    flwr run . federation --stream

`--run-config 'secure-aggregation=true update-range=0.1'` shows the server no single client's update, statistics or
scores, but their sums. `--run-config 'statistics-epsilon=4.0 statistics-delta=1e-5 statistics-radius=10.0'` has clients
send the sums of their features once, clipped and with noise: then there is FID-all, from these sums.

Scores, checkpoints and pictures are in `output` on the server: `fedgen select` and `fedgen evaluate` take that folder.
"""


def own_modules(settings: Any, folder: Path) -> list[Path]:
    """The files in a folder of modules and packages that class paths in settings name, without their imports."""
    tops = dict.fromkeys(text.split(".")[0] for text in texts_in(settings) if is_class_path(text))
    found: list[Path] = []
    for name in tops:
        package, module = folder / name, folder / f"{name}.py"
        files = sorted(package.rglob("*.py")) if (package / "__init__.py").is_file() else [module]
        if not files[0].is_file() or not _is_imported_from(name, folder):
            continue
        if name == RESERVED:
            raise ValueError(f"{files[0]} has the name of the app's own package; rename it")
        found += files
    return found


def _is_imported_from(name: str, folder: Path) -> bool:
    """Whether `import name` finds the folder's module, and not another of the same name."""
    spec = importlib.util.find_spec(name)
    origin = None if spec is None or spec.origin is None else Path(spec.origin).resolve()
    return origin is not None and folder.resolve() in origin.parents and name != "fedgen"


def write_app(
    recipe: Mapping[str, Any],
    data: Mapping[str, Any],
    folder: Path,
    clients: int,
    simulation: str,
    classes: Sequence[str] = (),
) -> list[Path]:
    """Writes the app's folder, with the modules of the current folder that the recipe names, which are returned."""
    # the server waits for so many clients; `simulation` is the folder of clients' folders, or ""; classes are in order
    settings, here = deployable(recipe, data), Path.cwd()
    modules = [path.relative_to(here) for path in own_modules(settings, here)]
    name = re.sub(r"[^a-z0-9]+", "-", folder.absolute().name.lower()).strip("-") or "federation"
    words = {"name": name, "package": PACKAGE, "recipe": RECIPE, "version": __version__, "clients": clients}
    words["ranges"] = "\n".join(f"{statistic} = 0.0  # {what}" for statistic, what in RANGES.items())
    output = Path("checkpoints") / name
    if (
        simulation or NUMBER in signature_of(data).parameters
    ):  # Flower's own SuperLink goes on from run to run, in whichever folder it was first started
        output = output.absolute()
    # names with commas cannot be given; clients' own names are taken then
    named = "" if any("," in name for name in classes) else ", ".join(map(_folder_of, classes))
    words |= {key: json.dumps(text) for key, text in (("output", str(output)), ("simulation", simulation))}
    words["classes"] = json.dumps(named, ensure_ascii=False)
    texts = {
        folder / "pyproject.toml": PYPROJECT.format(**words),
        folder / "README.md": README.format(**words),
        folder / PACKAGE / "__init__.py": f'"""{name}: a fedgen recipe on Flower."""\n',
        folder / PACKAGE / "client.py": SIDE.format(side="client", **words),
        folder / PACKAGE / "server.py": SIDE.format(side="server", **words),
        folder / PACKAGE / RECIPE: yaml.safe_dump(settings, sort_keys=False),
    }
    texts |= {folder / module: (here / module).read_text() for module in modules}
    for path, text in texts.items():
        with atomic_write(path) as file:
            file.write(text.encode())
    return modules


def export_clients(data: FederatedDataModule, folder: Path) -> None:
    """Writes every client's images as PNG in a folder by number and name, by class where they have labels, in order."""
    if folder.exists() and any(folder.iterdir()):
        raise FileExistsError(f"{folder} is not empty; choose another folder for the clients' images")
    width = len(str(len(data.clients) - 1))
    images = sum(len(client.everything) for client in data.clients)
    jobs = [
        (number, client, int(position))
        for number, client in enumerate(data.clients)
        for position in client.everything.tolist()
    ]
    for number, client, position in track(jobs, "writing images", images, "images"):
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", client.name)
        place = folder / f"{number:0{width}d}-{name}"
        if client.data.classes:
            place /= _folder_of(client.data.classes[int(client.data.labels[position])])
        place.mkdir(parents=True, exist_ok=True)
        save_png(place / f"{position:08d}.png", client.data.inputs[position])


def _folder_of(name: str) -> str:
    """The name of a class's folder."""
    return re.sub(r"[/\\]", "-", name)
