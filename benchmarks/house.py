"""The shape of the package, counted from its source and from one traced round, beside its goals: `make house`.

A journey is the files of the package whose functions run between two events of a round of one client, and the lines of
those functions: what somebody reads who follows it. Counts of lines are of whole files, with docstrings and comments.
"""

import argparse
import ast
import logging
import sys
import tempfile
import threading
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import lightning as L
from rich.console import Console
from rich.table import Table

import fedgen
from fedgen.callbacks import FederatedEvaluation
from fedgen.clients import FederatedDataModule
from fedgen.clients.partitions import ByClass
from fedgen.data import Digits
from fedgen.federated import FedAvgStrategy
from fedgen.models import WGANGP
from fedgen.models.networks import SmallCritic, SmallGenerator

ROOT = Path(fedgen.__file__).parent
TESTS = ROOT.parent / "tests"
RECURRING = {"__init__", "__main__", "base"}  # names of files that say the same in every folder


class Journey:
    """The package's functions that run between `begin` and `end`."""

    def __init__(self) -> None:
        self._codes: set[CodeType] = set()
        self.is_over = False

    def begin(self) -> None:
        if not self.is_over:
            threading.setprofile(self._note)
            sys.setprofile(self._note)

    def end(self) -> None:
        threading.setprofile(None)
        sys.setprofile(None)
        self.is_over = bool(self._codes)

    def _note(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(str(ROOT)):
            self._codes.add(frame.f_code)

    @property
    def lines_by_file(self) -> dict[str, int]:
        """The lines of its functions, by their files within the package."""
        places = {(code.co_filename, line) for code in self._codes for _, _, line in code.co_lines() if line}
        return dict(sorted(Counter(str(Path(file).relative_to(ROOT)) for file, _ in places).items()))

    @property
    def files(self) -> int:
        return len(self.lines_by_file)

    @property
    def lines(self) -> int:
        return sum(self.lines_by_file.values())

    @property
    def functions(self) -> dict[str, list[str]]:
        """The names of its functions, by file."""
        found: dict[str, list[str]] = {}
        for code in sorted(self._codes, key=lambda code: code.co_firstlineno):
            found.setdefault(str(Path(code.co_filename).relative_to(ROOT)), []).append(code.co_qualname)
        return found


class Traced(WGANGP):
    """A model that ends the first journey at its first step, and begins the last after its last one."""

    own_turn_state = ("_journeys", "_done")  # federated averaging would reset what a turn notes down

    def __init__(self, journeys: dict[str, Journey], steps: int) -> None:
        super().__init__(SmallGenerator(latent_dim=8), SmallCritic())
        self._journeys, self._steps, self._done = journeys, steps, 0

    def training_step(self, batch: Any, batch_idx: int) -> None:
        self._journeys["step"].end()
        super().training_step(batch, batch_idx)
        self._done += 1
        if self._done == self._steps:
            self._journeys["update"].begin()


class Ends(L.Callback):
    """The events of a round that are no step."""

    def __init__(self, journeys: dict[str, Journey]) -> None:
        self._journeys = journeys

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self._journeys["step"].begin()

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._journeys["update"].end()


def trace() -> dict[str, Journey]:
    """The three journeys of one round of one client, scored at its end."""
    from fedgen.callbacks import federated_evaluation
    from fedgen.evaluation.real.reference import Reference

    journeys = {name: Journey() for name in ("step", "score", "update")}
    score, append = Reference.score, federated_evaluation.append_records

    def scored(*arguments: Any, **options: Any) -> Any:
        journeys["score"].begin()
        return score(*arguments, **options)

    def appended(*arguments: Any, **options: Any) -> Any:
        found = append(*arguments, **options)
        journeys["score"].end()
        return found

    with tempfile.TemporaryDirectory() as folder:
        Reference.score, federated_evaluation.append_records = scored, appended
        try:
            evaluation = FederatedEvaluation(
                every_n_rounds=1, embeddings=["pixels"], num_images=80, scores=["fid"], grid=0
            )
            quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary"), False)
            trainer = L.Trainer(
                accelerator="cpu",
                max_epochs=1,
                callbacks=[Ends(journeys), evaluation],
                strategy=FedAvgStrategy(communication_interval=3, cohort_size=1),
                default_root_dir=folder,
                **quiet,
            )
            with redirect_stdout(StringIO()):  # the tables at a run's end
                trainer.fit(Traced(journeys, 3), FederatedDataModule(Digits(), ByClass(), batch_size=16))
        finally:
            Reference.score, federated_evaluation.append_records = score, append
    return journeys


def trees(root: Path) -> dict[Path, ast.Module]:
    """The syntax trees of a folder's files by their paths within it."""
    return {path.relative_to(root): ast.parse(path.read_text(encoding="utf-8")) for path in sorted(root.rglob("*.py"))}


def lines_of(root: Path) -> int:
    """The lines of a folder's files."""
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in root.rglob("*.py"))


def classes(sources: dict[Path, ast.Module]) -> Iterator[tuple[Path, ast.ClassDef]]:
    """All classes, with their files."""
    for path, tree in sources.items():
        yield from ((path, node) for node in ast.walk(tree) if isinstance(node, ast.ClassDef))


def asked_by_name(sources: dict[Path, ast.Module]) -> int:
    """Calls of `getattr` with an attribute's name, outside the experiments."""
    calls = (
        node
        for path, tree in sources.items()
        if path.parts[0] != "experiments"
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr"
    )
    return sum(len(call.args) > 1 and isinstance(call.args[1], ast.Constant) for call in calls)


def naming(sources: dict[Path, ast.Module], score: str) -> set[Path]:
    """The files outside the folder of scores and the experiments whose code has a score's name."""
    return {
        path
        for path, tree in sources.items()
        if path.parts[0] not in ("scores", "experiments")
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and node.value == score
    }


def measure() -> list[tuple[str, str, str, bool]]:
    """Rows of (measure, today, goal, whether it is met)."""
    sources = trees(ROOT)
    journeys = trace()
    own = [(path, node) for path, node in classes(sources) if path.parts[0] != "experiments"]
    largest = max(own, key=lambda one: int(one[1].end_lineno or 0) - one[1].lineno)[1]
    largest_lines = int(largest.end_lineno or 0) - largest.lineno + 1
    methods = sum(isinstance(node, ast.FunctionDef) for node in largest.body)
    folders = Counter(path.parent.as_posix() for path in sources)
    fullest, most = folders.most_common(1)[0]
    strategy = len((ROOT / "federated" / "strategy.py").read_text().splitlines())
    experiments = lines_of(ROOT / "experiments")
    named = Counter(node.name for _, node in classes(sources) if not node.name.startswith("_"))
    types = sorted(name for name, count in named.items() if count > 1)
    stems = Counter(path.stem for path in sources if path.stem not in RECURRING)
    files = sorted(name for name, count in stems.items() if count > 1)
    protocols, beside = asked_by_name(sources), naming(sources, "coverage")
    tests = "\n".join(path.read_text(encoding="utf-8") for path in TESTS.rglob("*.py"))
    rows = []
    for name, said, goal in (
        ("step", "from a client's batch to the module's training_step", (12, 1300)),
        ("score", "from generated features to fid_all in scores.jsonl", (12, 2000)),
        ("update", "from a client's last step to the server's weights", (7, 900)),
    ):
        one = journeys[name]
        met = one.files <= goal[0] and one.lines <= goal[1]
        if "--files" in sys.argv:
            print(f"{said}:")
            for file, lines in one.lines_by_file.items():
                print(f"  {file}, {lines} lines: {', '.join(one.functions[file])}")
        rows.append((f"files / lines {said}", f"{one.files} / {one.lines}", f"{goal[0]} / {goal[1]}", met))
    rows += [
        ("most files in one folder", f"{most} ({fullest})", "16", most <= 16),
        (
            "largest class: lines, methods",
            f"{largest_lines}, {methods} ({largest.name})",
            "300",
            largest_lines <= 300,
        ),
        ("lines of strategy.py", str(strategy), "300", strategy <= 300),
        ("lines of experiments", str(experiments), "8000", experiments <= 8000),
        ("files beside its own that name a score", str(len(beside)), "0", not beside),
        ("attributes asked for by name", str(protocols), "25", protocols <= 25),
        ("type names with two meanings", str(len(types)), "0", not types),
        ("names of files that recur", str(len(files)), "4", len(files) <= 4),
        ("lines of tests", str(len(tests.splitlines())), "40000", len(tests.splitlines()) <= 40000),
        ("messages pinned by tests", str(tests.count("match=")), "", True),
        ("lines of the package", str(lines_of(ROOT)), "49000", lines_of(ROOT) <= 49000),
    ]
    if "--names" in sys.argv:
        print("type names:", ", ".join(types), "\nfiles:", ", ".join(files), "\nbeside:", *sorted(map(str, beside)))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--names", action="store_true", help="list the names that recur")
    parser.add_argument("--files", action="store_true", help="list the files and functions of each journey")
    parser.parse_args()
    warnings.simplefilter("ignore")
    logging.getLogger("lightning").setLevel(logging.ERROR)
    table = Table("measure", "today", "goal", "met")
    for name, today, goal, met in measure():
        table.add_row(name, today, goal, "yes" if met else "no")
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
