"""Server optimizers and client algorithms on one federation: rounds and bytes to a given KID.

FedAvg, FedAvgM, FedAdam, FedAdagrad, FedYogi (Reddi et al. 2021), FedProx (Li et al. 2020) and SCAFFOLD (Karimireddy et
al. 2020), each with one setting; of "What Do We Mean by Generalization in Federated Learning?" (Yuan et al. 2022, arXiv
2110.14216) it is said that the participation gap is about the same for all server optimizers.
"""

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.table import Table

from fedgen.evaluation.gap_table import SPLITS
from fedgen.experiments.gap_numbers import PARTICIPATION, Curve, unseen
from fedgen.experiments.gap_runs import Arm, GapChoice
from fedgen.experiments.gap_study import MAIN, Found, gap_verdicts, report_arms, run_arms
from fedgen.experiments.recipe_file import component
from fedgen.experiments.study import Study
from fedgen.files import in_bytes
from fedgen.models.checkpoint_file import read_checkpoint

SERVER, ALGORITHM = (f"trainer.strategy.init_args.{name}" for name in ("server_optimizer", "client_algorithm"))
REACHED = "kid all"
CONTROL, SCAFFOLD = "FedAvg", "SCAFFOLD"
TIMES = {SCAFFOLD: 2}  # of a client's message: control variates travel beside the weights


def arms_of(rates: Mapping[str, float], mu: float) -> list[Arm]:
    """FedAvg and what is compared with it."""
    servers = [Arm(name, {SERVER: component(f"fedgen.federated.{name}", lr=rate)}) for name, rate in rates.items()]
    proximal = Arm("FedProx", {ALGORITHM: component("fedgen.federated.FedProx", mu=mu)})
    return [Arm(CONTROL), *servers, proximal, Arm(SCAFFOLD, {ALGORITHM: component("fedgen.federated.Scaffold")})]


def server_optimizers(
    output: Path | None = None,
    checks: int = 10,
    momentum_lr: float = 0.3,
    adaptive_lr: float = 0.003,
    mu: float = 0.1,
    **options: Any,
) -> None:
    """Rounds and bytes to the KID that FedAvg ends with, and the gaps, by server optimizer and client algorithm.

    Args:
        output: folder of results.json and the figure.
        checks: evaluations of a run, evenly spaced: rounds are counted in these steps.
        momentum_lr: FedAvgM's server learning rate.
        adaptive_lr: that of FedAdam, FedAdagrad and FedYogi.
        mu: FedProx's weight.
        options: the other fields of `GapChoice`.
    """
    choice = GapChoice(checks=checks, **options)
    own = {"momentum_lr": momentum_lr, "adaptive_lr": adaptive_lr, "mu": mu}
    study = Study("server-optimizers", output, choice.settings() | own)
    rates = {"FedAvgM": momentum_lr, **dict.fromkeys(("FedAdam", "FedAdagrad", "FedYogi"), adaptive_lr)}
    arms = arms_of(rates, mu)
    found = run_arms(study, choice, arms)
    message = study.step("bytes", lambda: bytes_of(choice.training(arms[0], choice.seed).place))
    study.console.print(reach_table(found, statistics.mean(unseen(found[CONTROL], REACHED)), message))
    report_arms(study, found, "server optimizers", gap_verdicts(found, CONTROL, (PARTICIPATION,), MAIN), CONTROL)


def bytes_of(place: Path) -> int:
    """What a client sends in a round: the weights and buffers of a run's model, without its moving average."""
    tensors = read_checkpoint(place / "last.ckpt")["state_dict"]
    return int(sum(t.numel() * t.element_size() for name, t in tensors.items() if name.startswith("network.")))


def reached_after(curve: Curve, target: float) -> int | None:
    """The first evaluated round, counted from 1, whose score on unseen clients is no worse than a target."""
    for round, value in zip(curve["rounds"], curve["values"][SPLITS[2]]):
        if value <= target:
            return int(round) + 1
    return None


def reach_table(found: Found, target: float, message: int) -> Table:
    """Rounds and bytes to a target, by arm; means over the seeds that reach it.

    Args:
        found: of `run_arms`.
        target: of `REACHED` on unseen clients.
        message: bytes that a client sends in a round of FedAvg.
    """
    table = Table(title=f"to {REACHED} {target:.3g} on unseen clients, which FedAvg ends with")
    for heading in ("trained", "seeds that reach it", "rounds", "sent by a client that is in all"):
        table.add_column(heading, justify="left" if heading == "trained" else "right")
    for arm, seeds in found.items():
        rounds = [reached_after(by_column[REACHED], target) for by_column in seeds.values()]
        there = [round for round in rounds if round is not None]
        mean = statistics.mean(there) if there else None
        sent = "" if mean is None else in_bytes(round(mean * message * TIMES.get(arm, 1)))
        table.add_row(arm, f"{len(there)} of {len(rounds)}", "" if mean is None else f"{mean:.0f}", sent)
    return table
