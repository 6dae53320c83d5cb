"""The quickstart's rounds on Flower's simulation, as its page runs them, beside Flower's minimal app there.

The minimal app runs twice: bare, and with a fit of Lightning's Trainer around its steps, the least that a kit for
Lightning can take. Five of ten clients a round, in actors of Ray, which is installed where the peers are. Flower looks
for messages each tenth of a second, so that rounds take whole tenths, and their ratio jumps: that of single messages
does not (`--parts messages`).
"""

from contextlib import chdir
from pathlib import Path

from benchmarks.deployed import minimal, with_lightning
from benchmarks.deployed.recipes import quickstart, seconds_of, write_minimal
from benchmarks.peers.environments import packages_of
from benchmarks.report import report
from fedgen.flower.app.write_app import write_app
from tests.flower.engine import ended, superlink
from tests.flower.federation import config_text
from tests.flower.runs import IMAGES, write_images

SIZES = dict.fromkeys("abcdefghij", 140)
COHORT = 5
NODES = f"num-supernodes={len(SIZES)} client-resources-num-cpus=1"


def simulated(rounds: int, folder: Path) -> bool:
    """Reports the apps' rounds; returns whether the kit's over the minimal app's is within its limit."""
    images = write_images(folder / "clients", SIZES)
    ours, theirs = folder / "ours.txt", {"minimal": folder / "minimal.txt", "lightning": folder / "lightning.txt"}
    with chdir(folder):  # so that the app takes no modules of the current folder with it
        write_app(quickstart(rounds, COHORT, ours), IMAGES, folder / "app", len(SIZES), str(images))
    write_minimal(folder / "minimal", minimal)
    write_minimal(folder / "lightning", with_lightning)
    counts = {"rounds": rounds, "clients": len(SIZES), "cohort": COHORT, "data": str(images)}
    told = {name: {**counts, "stamps": str(stamps)} for name, stamps in theirs.items()}
    told["app"] = {"output": str(folder / "run")}
    with superlink(folder, packages_of("flower")) as environment:
        for app, config in told.items():
            command = ["flwr", "run", str(folder / app), "local", "--stream", "--run-config", config_text(config)]
            ended([*command, "--federation-config", NODES], folder, environment)
    title = f"a round of {COHORT} of {len(SIZES)} clients in Flower's simulation"
    report(f"{title}: the kit", seconds_of(ours), "s")
    within = True
    # an actor keeps nothing between messages but the parsed recipe: images are read and the model is made for each
    apps = {"minimal": ("Flower's minimal app", 2.5), "lightning": ("Flower's minimal app with Lightning's fit", None)}
    for key, (name, limit) in apps.items():
        seconds = seconds_of(theirs[key])
        report(f"{title}: {name}", seconds, "s")
        within &= report(f"{title}: the kit over {name}", seconds_of(ours) / seconds, "ratio", limit)
    return within
