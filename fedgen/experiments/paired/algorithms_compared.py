"""Server optimizers and client algorithms on one federation: rounds and bytes to a given KID.

FedAvg, FedAvgM, FedAdam, FedAdagrad, FedYogi (Reddi et al. 2021), FedProx (Li et al. 2020) and SCAFFOLD (Karimireddy et
al. 2020), each with one setting; of "What Do We Mean by Generalization in Federated Learning?" (Yuan et al. 2022, arXiv
2110.14216) it is said that the participation gap is about the same for all server optimizers.
"""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from fedgen.evaluation.tables.gap_table import SPLITS
from fedgen.experiments.engine.arms.gap_numbers import PARTICIPATION, Curve, last
from fedgen.experiments.engine.arms.gap_runs import GapChoice
from fedgen.experiments.engine.arms.gap_study import report_arms, run_arms
from fedgen.experiments.engine.arms.message_bytes import message_bytes
from fedgen.experiments.engine.recipe_file import component
from fedgen.experiments.engine.results import make_table
from fedgen.experiments.engine.study import Study
from fedgen.experiments.engine.trainings import Arm
from fedgen.io.files import in_bytes

SERVER, ALGORITHM = (f"trainer.strategy.init_args.{name}" for name in ("server_optimizer", "client_algorithm"))
REACHED = "kid all"
CONTROL = "FedAvg"
ADAPTIVE = ("FedAdam", "FedAdagrad", "FedYogi")


def arms_of(momentum_lr: float, adaptive_lr: Mapping[str, float], mu: float) -> list[Arm]:
    """FedAvg and what is compared with it; the adaptive ones in the form of Reddi et al. 2021."""
    momentum = Arm("FedAvgM", {SERVER: component("fedgen.federated.FedAvgM", lr=momentum_lr)})
    adaptive = [
        Arm(name, {SERVER: component(f"fedgen.federated.{name}", lr=rate, convention="reddi")})
        for name, rate in adaptive_lr.items()
    ]
    proximal = Arm("FedProx", {ALGORITHM: component("fedgen.federated.FedProx", mu=mu)})
    scaffold = Arm("SCAFFOLD", {ALGORITHM: component("fedgen.federated.Scaffold")})
    return [Arm(CONTROL), momentum, *adaptive, proximal, scaffold]


def server_optimizers(
    output: Path | None = None,
    checks: int = 10,
    kid: float | None = None,
    momentum_lr: float = 0.1,
    adaptive_lr: Sequence[float] = (0.005, 0.01, 0.005),
    mu: float = 0.1,
    **options: Any,
) -> None:
    """Rounds and bytes to a KID on unseen clients, and the gaps, by server optimizer and client algorithm.

    Args:
        output: folder of results.json and the figure.
        checks: evaluations of a run, evenly spaced: rounds are counted in these steps.
        kid: KID-all to be reached; by default the median of what all end with in the same repetition, so that at
            least half of them reach it.
        momentum_lr: FedAvgM's server learning rate; by default one with which a constant update moves the server as
            far as FedAvg's.
        adaptive_lr: those of FedAdam, FedAdagrad and FedYogi; the defaults did best in short runs of another seed.
        mu: FedProx's weight.
        options: the other fields of `GapChoice`.

    Raises:
        ValueError: for another number of adaptive rates than three.
    """
    if len(adaptive_lr) != len(ADAPTIVE):
        raise ValueError(f"adaptive_lr={list(adaptive_lr)}: give three rates, of {', '.join(ADAPTIVE)}")
    choice = GapChoice(checks=checks, **options)
    own = {"kid": kid, "momentum_lr": momentum_lr, "adaptive_lr": list(adaptive_lr), "mu": mu}
    study = Study("server-optimizers", output, choice.settings() | own)
    arms = arms_of(momentum_lr, dict(zip(ADAPTIVE, adaptive_lr)), mu)
    found = run_arms(study, choice, arms)
    sizes = study.step("bytes", lambda: {arm.name: message_bytes(choice.training(arm, choice.seed)) for arm in arms})
    rounds = study.step("reached", lambda: reached(found.curves, kid))
    study.console.print(reach_table(rounds, sizes, "the median of what all end with" if kid is None else f"{kid:g}"))
    report_arms(study, found, "server optimizers", found.differences(CONTROL, (PARTICIPATION,)), CONTROL)


def reached(
    found: Mapping[str, Mapping[str, Mapping[str, Curve]]], target: float | None
) -> dict[str, list[int | None]]:
    """By arm, a number a repetition: the round, counted from 1, that is the first evaluated one to reach a target.

    Args:
        found: arm -> seed -> "score aggregate" -> curve.
        target: of `REACHED` on unseen clients; None for the median, the worse of two, of what the arms end with in the
            same repetition.
    """

    def target_of(seed: str) -> float:
        ends = [last(seeds[seed][REACHED], SPLITS[2]) for seeds in found.values()]
        return statistics.median_high(ends) if target is None else target

    return {
        arm: [reached_after(by_column[REACHED], target_of(seed)) for seed, by_column in seeds.items()]
        for arm, seeds in found.items()
    }


def reached_after(curve: Curve, target: float) -> int | None:
    """The first evaluated round, counted from 1, whose score on unseen clients is no worse than a target."""
    for round, value in zip(curve["rounds"], curve["values"][SPLITS[2]]):
        if value <= target:
            return int(round) + 1
    return None


def reach_table(
    reached_at: Mapping[str, Sequence[int | None]], sizes: Mapping[str, Mapping[str, int]], target: str
) -> Table:
    """Rounds and bytes to a target, by arm; a repetition that does not reach it has none.

    Args:
        reached_at: of `reached`.
        sizes: bytes that a client sends in a round, by arm and part.
        target: in words.
    """
    rows = []
    for arm, found in reached_at.items():
        there = [round for round in found if round is not None]
        message = sum(sizes[arm].values())
        sent = in_bytes(round(statistics.mean(there) * message)) if there else ""
        rows.append((arm, ", ".join("-" if one is None else str(one) for one in found), in_bytes(message), sent))
    title = f"to {REACHED} on unseen clients of {target}"
    note = (
        "rounds: of every seed, - where it is not reached; sent: by a client that is in all of them, the mean of the"
        " seeds that reach it"
    )
    return make_table(title, ("trained", "rounds", "a message", "sent"), rows, note)
