"""How long commands take to start, beside importing torch and Lightning (run: python -m benchmarks.start).

In processor seconds of a process, which other work on the machine changes least, each the least of some runs that take
turns. What `fedgen fit` imports beyond Lightning is a fortieth of it, less than two processes of the same command
differ, so one process imports both, one after the other, and tells both times.
"""

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

from benchmarks.report import report

RUNS = 3
SCORE = {
    "score": "fid", "value": 1.0, "standard_error": 0.1, "split": "train", "embedding": "pixels",
    "embedding_fingerprint": "0", "reference": "digits/train", "num_generated": 100, "num_clients": 2, "seed": 0,
}  # fmt: skip
HELP = ("select", "evaluate", "convert", "clients", "deploy", "reproduce")
TORCH, LIGHTNING = "import torch", "import lightning.pytorch"
FIT = "importing what `fedgen fit` needs"
FIT_BESIDE_LIGHTNING = """
import time
import lightning.pytorch
of_lightning = time.process_time()
from fedgen.training.fit import load_classes
load_classes()
print(time.process_time() / of_lightning)
"""


def commands(folder: Path) -> dict[str, list[str]]:
    """What is started, by name: the arguments of Python."""
    from fedgen.evaluation import ScoreRecord, append_records

    records = [ScoreRecord(**SCORE, aggregate=name, round=round) for round in (0, 1) for name in ("avg", "all")]  # type: ignore[arg-type]
    append_records(folder / "scores.jsonl", records)
    recipe = folder / "bad.yaml"
    recipe.write_text(yaml.safe_dump({"modle": {"class_path": "fedgen.models.WGANGP"}}))
    images = ["--generated", str(folder / "none"), "--clients", str(folder / "nobody")]
    fedgen = ["-m", "fedgen"]
    return {
        TORCH: ["-c", TORCH],
        LIGHTNING: ["-c", LIGHTNING],
        **{f"`fedgen {name} --help`": [*fedgen, name, "--help"] for name in HELP},
        "`fedgen select RUN`": [*fedgen, "select", str(folder)],
        "`fedgen report RUN`": [*fedgen, "report", str(folder)],
        "`fedgen evaluate` of folders that are not there": [*fedgen, "evaluate", *images],
        "`fedgen fit` of a recipe that is not there": [*fedgen, "fit", str(folder / "nothere.yaml")],
        "`fedgen fit` of a recipe with a wrong first key": [*fedgen, "fit", "--config", str(recipe)],
    }


def keeping_bytecode() -> dict[str, str]:
    """This environment, in which processes use the bytecode of those before."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def processor_seconds(arguments: list[str]) -> float:
    """User and system time of a process, and of those that it waits for."""
    command, none = [sys.executable, *arguments], subprocess.DEVNULL
    process = subprocess.Popen(command, stdout=none, stderr=none, env=keeping_bytecode())
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return float(usage.ru_utime + usage.ru_stime)


def fit_beside_lightning() -> float:
    """Processor seconds of a process that imports what `fedgen fit` needs, over those in which it imports Lightning."""
    command = [sys.executable, "-c", FIT_BESIDE_LIGHTNING]
    return float(subprocess.run(command, stdout=subprocess.PIPE, env=keeping_bytecode(), check=True).stdout)


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        started = commands(Path(folder))
        for arguments in started.values():
            processor_seconds(arguments)  # which also compiles what is new
        runs = [{name: processor_seconds(arguments) for name, arguments in started.items()} for _ in range(RUNS)]
    least = {name: min(run[name] for run in runs) for name in started}
    fit_beside_lightning()  # which compiles what is new, too
    beside = statistics.median(fit_beside_lightning() for _ in range(RUNS))
    printed = [report(name, least[name], "processor seconds") for name in (TORCH, LIGHTNING)]
    printed.append(report(FIT, beside, f"times `{LIGHTNING}`", 1.05))
    limits = {
        "`fedgen fit` of a recipe with a wrong first key": 1.3,
        "`fedgen fit` of a recipe that is not there": 1.3,
        "`fedgen select RUN`": 1.2,
        "`fedgen report RUN`": 1.2,
        "`fedgen evaluate` of folders that are not there": 1.3,
        **{f"`fedgen {name} --help`": 0.15 for name in HELP},
    }
    within = [report(name, least[name] / least[TORCH], f"times `{TORCH}`", limit) for name, limit in limits.items()]
    return 0 if all([*printed, *within]) else 1


if __name__ == "__main__":
    sys.exit(main())
