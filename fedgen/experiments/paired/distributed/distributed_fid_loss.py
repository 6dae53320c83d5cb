"""The optimum that FID and KID pull a generator to when they are its loss, by the way in which clients are aggregated.

Trained on FID-all a generator has the pool's variance, on FID-avg less: that of a barycentre of the clients. KID's two
aggregates differ by a number of the real data alone and so have one gradient. First on the papers' Gaussian toy, where
the optima are known and KID-avg is the mean of what each client computes for itself; then on digits, as the second loss
of a federated GAN, where KID-all stands for both: one code gives their gradient. No client's data reach a FID loss:
moments do, their total for "all" and each client's for "avg". KID's loss needs the clients' points: it is simulated.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from fedgen.evaluation.marks import mark_of
from fedgen.experiments.engine.run_images import client_images, generated_images
from fedgen.experiments.engine.study import Study
from fedgen.experiments.engine.trainings import Training, by_seed, train_all
from fedgen.experiments.paired.digits_fid_loss import compare, last_scores
from fedgen.experiments.paired.distributed.distributed_digits import (
    ARMS,
    CONTROL,
    DistributedChoice,
    floors,
    messages_against_images,
    real_traces,
    traces,
    trainings,
)
from fedgen.experiments.paired.distributed.distributed_report import (
    difference_table,
    digits_outcomes,
    digits_table,
    draw_digits,
    draw_toy,
    save_samples,
    toy_outcomes,
    toy_table,
)
from fedgen.experiments.paired.distributed.distributed_toy import ToySettings, train_toy

TOY = ToySettings()
QUICK_TOY = ToySettings(points=2000, kernel_points=500, batch=256, queue=1024, steps=200)
FIGURES = ("distributed_fid_toy.png", "distributed_fid_digits.png")
KID_AVG = (
    "KID-avg is not trained on digits: the loss has one gradient for it and KID-all, by the same code; that this is the"
    " mean of the clients' own is checked on the toy"
)


def distributed_fid_loss(output: Path | None = None, **options: Any) -> None:
    """Trains the toy by four objectives and the digits' GAN by three of them and by none, and compares where they end.

    Finished runs are kept and not run again; stopped ones go on. 12 runs of two minutes, and three minutes for the toy.

    Args:
        output: folder of the runs, results.json and two figures; checkpoints/distributed-fid-loss by default.
        options: the fields of `DistributedChoice`.
    """
    choice = DistributedChoice(**options)
    study, toy_settings = Study("distributed-fid-loss", output, choice.settings()), QUICK_TOY if choice.quick else TOY
    toy = study.each("toy", {f"seed {one}": one for one in choice.seeds_of}, lambda one: train_toy(toy_settings, one))
    runs = trainings(choice, study.folder)
    if study.missing("digits"):
        train_all(by_seed(runs), choice.parallel)
    digits = study.step("digits", lambda: measure(runs, choice))
    samples = {arm: study.path(f"samples-{arm}.png") for arm in (*ARMS, "real")}
    if not all(path.exists() for path in samples.values()):
        images = {arm: generated_images(own[0].folder, seed=choice.seed) for arm, own in runs.items()}
        save_samples(images | {"real": client_images(runs[CONTROL][0].folder)}, samples)
    tables: list[Table | str] = [toy_table(toy), *toy_outcomes(toy), digits_table(digits)]
    tables += [difference_table(digits)] if choice.seeds > 1 else []
    tables += [*digits_outcomes(digits), KID_AVG, f"figure: {draw_toy(toy, study.path(FIGURES[0]))}"]
    study.report(tables, draw_digits(digits, samples, study.path(FIGURES[1])))


def measure(runs: Mapping[str, Sequence[Training]], choice: DistributedChoice) -> dict[str, Any]:
    """Measure what the digits' runs left, as numbers for `results.json`.

    Keys: "scores" (column -> arm -> values by seed), "marks" (column -> mark), "floor" (column -> value), "against no
    loss" (arm -> `digits_fid_loss.compare`, from two seeds on), "traces" (embedding -> arm -> values by seed), "real
    traces" (embedding -> pool, within), "messages" (see `messages_against_images`).
    """
    scored = {arm: [last_scores(run.folder, choice.rounds) for run in own] for arm, own in runs.items()}
    columns = [name for name in scored[CONTROL][0] if name.endswith(("_all", "_avg"))]
    found: dict[str, Any] = {
        "scores": {name: {arm: [run[name].value for run in own] for arm, own in scored.items()} for name in columns},
        "marks": {name: mark_of(scored["fid_all"][0][name]) for name in columns},
        "floor": floors(runs[CONTROL][0].folder),
        "real traces": real_traces(runs[CONTROL][0].folder, choice.embeddings),
        "messages": messages_against_images(runs[CONTROL][0].folder),
    }
    if len(scored[CONTROL]) > 1:
        found["against no loss"] = {arm: compare(scored[CONTROL], own) for arm, own in scored.items() if arm != CONTROL}
    measured = {
        arm: [traces(generated_images(run.folder, seed=choice.seed), choice.embeddings) for run in own]
        for arm, own in runs.items()
    }
    found["traces"] = {
        name: {arm: [run[name] for run in own] for arm, own in measured.items()} for name in choice.embeddings
    }
    return found
