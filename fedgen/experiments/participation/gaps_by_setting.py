"""Gaps of a generator on clients that never train, by one setting: turns, rates, optimizers, clients, their diversity.

After "What Do We Mean by Generalization in Federated Learning?" (Yuan et al. 2022, arXiv 2110.14216), there of
classifiers: Figure 7, more clients; Figure 8, as many images of more; Figure 12, local epochs; Appendix C and Figures
11, 13, 14, rates, and optimizers (Reddi et al. 2021, FedProx, SCAFFOLD), here also by rounds and bytes to a given KID.
An arm with more participants is scored on more unseen clients: averages compare over those that all arms score.
"""

import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise, product
from typing import Any

from rich.table import Table

from fedgen.evaluation import ScoreRecord
from fedgen.evaluation.tables.table import SPLITS
from fedgen.experiments.engine import gaps
from fedgen.experiments.engine.paired_seeds import change_of, compare_pairs, verdict_on
from fedgen.experiments.engine.scored_checkpoints import message_bytes
from fedgen.experiments.engine.study import Numbers, Study, make_table
from fedgen.experiments.engine.trainings import Arm, component, of_strategy
from fedgen.io.files import in_bytes

UNSEEN = SPLITS[-1]


def common_scores(study: Study, choice: gaps.GapChoice, arms: Sequence[Arm]) -> dict[str, Any]:
    """The last scores on the unseen clients that are scored in every arm of a seed."""

    def read() -> dict[str, Any]:
        found: dict[str, Any] = {"clients": [], **{column: {arm.name: [] for arm in arms} for column in gaps.AVERAGES}}
        for seed in choice.seeds_of:
            records = {arm.name: choice.records(arm, seed) for arm in arms}
            for column in gaps.AVERAGES:
                means, number = means_on_common(records, column)
                for arm, mean in means.items():
                    found[column][arm].append(mean)
            found["clients"].append(number)
        return found

    return study.step("common", read)


def means_on_common(records: Mapping[str, Sequence[ScoreRecord]], column: str) -> tuple[dict[str, float], int]:
    """One seed's last scores by arm, each client weighing the same, and over how many clients."""
    score, aggregate = column.split()
    single = {}
    for arm, own in records.items():
        here = [r for r in own if r.is_model and (r.score, r.aggregate, r.split) == (score, aggregate, UNSEEN)]
        record = max(here, key=lambda record: record.round or 0)
        single[arm] = dict(zip(record.client_names, record.per_client, strict=True))
    common = set.intersection(*(set(by_name) for by_name in single.values()))
    if not common:
        raise ValueError(f"no unseen client is scored in all of {', '.join(records)}, so they do not compare")
    return {arm: statistics.mean(by_name[name] for name in common) for arm, by_name in single.items()}, len(common)


def common_table(found: Numbers) -> Table:
    first, rows = next(iter(found[gaps.MAIN])), []
    for arm in found[gaps.MAIN]:
        cells = []
        for column in gaps.AVERAGES:
            values = found[column][arm]
            change = "" if arm == first else change_of(compare_pairs(found[column][first], values))
            cells += [f"{statistics.mean(values):.4g}", change]
        rows.append((arm, *cells))
    counts = "/".join(map(str, sorted(set(found["clients"]))))
    headings = ("trained", *(name for column in gaps.AVERAGES for name in (column, "beside the first")))
    note = "beside the first: paired differences over seeds with 95 % intervals"
    return make_table(f"the {counts} unseen clients that all arms score", headings, rows, note)


SPLIT = "data.init_args.split.init_args"
SERVER, ALGORITHM = (f"trainer.strategy.init_args.{name}" for name in ("server_optimizer", "client_algorithm"))


def client_diversity(
    participating: Sequence[float] = (0.16, 0.31, 0.62, 1.0), images: Sequence[int] = (50, 25, 12, 8), **options: Any
) -> None:
    """Scores on seen and unseen clients at about one number of training images, of few clients or of many.

    Args:
        participating: fractions of the clients that may train; a cohort must fit into the least.
        images: of each of them at most, in the same order.
    """
    if len(participating) != len(images):
        raise ValueError(f"{len(images)} numbers of images for {len(participating)} fractions of clients; give as many")
    choice = gaps.GapChoice(**options)
    study = choice.study("client-diversity", participating=list(participating), images=list(images))
    arms = [
        Arm(f"x {count}", {f"{SPLIT}.participating": rate, f"{SPLIT}.max_examples": count})
        for rate, count in zip(participating, images)
    ]
    arms = gaps.named_by_clients(choice, arms)
    found = gaps.run_arms(study, choice, arms)
    first, common = arms[0].name, common_scores(study, choice, arms)
    lines: list[Table | str] = [common_table(common)]
    for arm, column in product(arms[1:], gaps.AVERAGES):
        text = f"{arm.name}: {column} on the same unseen clients is below that of {first}"
        lines.append(verdict_on(text, (common[column][first], common[column][arm.name]), "less"))
    gaps.report_arms(study, found, "as many images of more clients", lines, columns=gaps.AVERAGES)


def number_of_clients(participating: Sequence[float] = (0.16, 0.25, 0.5, 1.0), **options: Any) -> None:
    """Scores on seen and unseen clients by the number of clients that train.

    Args:
        participating: fractions of the clients that may train; a cohort must fit into the least.
    """
    choice = gaps.GapChoice(**options)
    study = choice.study("number-of-clients", participating=list(participating))
    arms = gaps.named_by_clients(choice, [Arm("", {f"{SPLIT}.participating": rate}) for rate in sorted(participating)])
    found = gaps.run_arms(study, choice, arms)
    names, common = [arm.name for arm in arms], common_scores(study, choice, arms)
    lines: list[Table | str] = [common_table(common)]
    for column, (one, more) in product(gaps.AVERAGES, pairwise(names)):
        text = f"{column} on the same unseen clients falls from {one} to {more}"
        lines.append(verdict_on(text, (common[column][one], common[column][more]), "less"))
    few_and_all = found.values(gaps.MAIN, gaps.PARTICIPATION, names[0], names[-1])
    text = f"the participation gap in {gaps.MAIN} shrinks from {names[0]} to {names[-1]}"
    lines.append(verdict_on(text, few_and_all, "less"))
    gaps.report_arms(study, found, "clients that train", lines, columns=gaps.AVERAGES)


BEST = 4


def learning_rates(
    client: Sequence[float] = (0.0005, 0.002, 0.008), server: Sequence[float] = (0.1, 0.3), **options: Any
) -> None:
    """Scores on seen and unseen clients by client and server learning rate, under FedAvgM.

    Args:
        client: learning rates of the model's own optimizer.
        server: learning rates of the server's, whose momentum is 0.9, so that 0.1 moves it as far as FedAvg does.
    """
    choice = gaps.GapChoice(**options)
    study = choice.study("learning-rates", client=list(client), server=list(server))
    arms = []
    for rate, step in product(client, server):
        own = {"model.init_args.lr": rate, SERVER: component("fedgen.federated.FedAvgM", lr=step)}
        arms.append(Arm(f"client {rate:g}, server {step:g}", own))
    found = gaps.run_arms(study, choice, arms)
    ranking = sorted(found.curves, key=lambda arm: chosen_by(found, arm))
    best = gaps.GapScores({arm: found.curves[arm] for arm in ranking[:BEST]}, found.controls)
    rows = [(str(rank), arm, f"{chosen_by(found, arm):.4g}") for rank, arm in enumerate(ranking, 1)]
    title = f"rates by {gaps.MAIN} on part_val + unpart, mean over seeds"
    study.console.print(make_table(title, ("rank", "rates", "sum"), rows, left=2))
    lines = found.differences(ranking[0], (gaps.PARTICIPATION,), ranking)
    gaps.report_arms(study, best, "the best learning rates", lines, ranking[0])


def chosen_by(found: gaps.GapScores, arm: str) -> float:
    """The mean over seeds of the last scores on part_val plus those on unpart."""
    sums = [found.values(gaps.MAIN, split, arm)[0] for split in SPLITS[1:]]
    return statistics.mean(val + unseen for val, unseen in zip(*sums))


def local_epochs(lengths: Sequence[int] = (1, 2, 5, 10), **options: Any) -> None:
    """Scores on seen and unseen clients by the length of a turn, at equal local iterations.

    Args:
        lengths: of a turn, as multiples of the recipe's communication interval; others are compared with the first.
    """
    choice = gaps.GapChoice(**options)
    study, interval = choice.study("local-epochs", lengths=list(lengths)), of_strategy(choice.recipe)
    key = "trainer.strategy.init_args.communication_interval"
    arms = [Arm(f"{interval * times} iterations", {key: interval * times}, rounds=1 / times) for times in lengths]
    found = gaps.run_arms(study, choice, arms)
    lines = found.differences(arms[0].name, (gaps.OUT_OF_SAMPLE, gaps.PARTICIPATION))
    gaps.report_arms(study, found, "length of a turn", lines, arms[0].name)


REACHED = "kid all"
CONTROL = "FedAvg"
ADAPTIVE = ("FedAdam", "FedAdagrad", "FedYogi")


def arms_of(momentum_lr: float, adaptive_lr: Mapping[str, float], mu: float) -> list[Arm]:
    """FedAvg and what is compared with it; the adaptive ones in the form of Reddi et al. 2021."""
    own = {"FedAvgM": {SERVER: component("fedgen.federated.FedAvgM", lr=momentum_lr)}}
    for name, rate in adaptive_lr.items():
        own[name] = {SERVER: component(f"fedgen.federated.{name}", lr=rate, convention="reddi")}
    own["FedProx"] = {ALGORITHM: component("fedgen.federated.FedProx", mu=mu)}
    own["SCAFFOLD"] = {ALGORITHM: component("fedgen.federated.Scaffold")}
    return [Arm(CONTROL), *(Arm(name, settings) for name, settings in own.items())]


def server_optimizers(
    checks: int = 10,
    kid: float | None = None,
    momentum_lr: float = 0.1,
    adaptive_lr: Sequence[float] = (0.005, 0.01, 0.005),
    mu: float = 0.1,
    **options: Any,
) -> None:
    """Rounds and bytes to a KID on unseen clients, and the gaps, by server optimizer and client algorithm.

    Args:
        checks: evaluations of a run, evenly spaced: rounds are counted in these steps.
        kid: KID-all to be reached; by default the median of what all end with in the same repetition.
        momentum_lr: FedAvgM's server rate; by default a constant update moves the server as far as FedAvg's.
        adaptive_lr: those of FedAdam, FedAdagrad and FedYogi; the defaults did best in short runs of another seed.
        mu: FedProx's weight.
    """
    if len(adaptive_lr) != len(ADAPTIVE):
        raise ValueError(f"adaptive_lr={list(adaptive_lr)}: give three rates, of {', '.join(ADAPTIVE)}")
    choice = gaps.GapChoice(checks=checks, **options)
    own = {"kid": kid, "momentum_lr": momentum_lr, "adaptive_lr": list(adaptive_lr), "mu": mu}
    study = choice.study("server-optimizers", **own)
    arms = arms_of(momentum_lr, dict(zip(ADAPTIVE, adaptive_lr)), mu)
    found = gaps.run_arms(study, choice, arms)
    sizes = study.step("bytes", lambda: {arm.name: message_bytes(choice.training(arm, choice.seed)) for arm in arms})
    rounds = study.step("reached", lambda: reached(found.curves, kid))
    study.console.print(reach_table(rounds, sizes, "the median of what all end with" if kid is None else f"{kid:g}"))
    gaps.report_arms(study, found, "server optimizers", found.differences(CONTROL, (gaps.PARTICIPATION,)), CONTROL)


def reached(
    found: Mapping[str, Mapping[str, Mapping[str, gaps.Curve]]], target: float | None
) -> dict[str, list[int | None]]:
    """By arm and repetition, the first evaluated round, counted from 1, to reach a target."""

    def target_of(seed: str) -> float:
        ends = [gaps.last(seeds[seed][REACHED], SPLITS[2]) for seeds in found.values()]
        return statistics.median_high(ends) if target is None else target

    return {
        arm: [reached_after(by_column[REACHED], target_of(seed)) for seed, by_column in seeds.items()]
        for arm, seeds in found.items()
    }


def reached_after(curve: gaps.Curve, target: float) -> int | None:
    rounds = zip(curve["rounds"], curve["values"][SPLITS[2]])
    return next((int(round) + 1 for round, value in rounds if value <= target), None)


def reach_table(
    reached_at: Mapping[str, Sequence[int | None]], sizes: Mapping[str, Mapping[str, int]], target: str
) -> Table:
    rows = []
    for arm, found in reached_at.items():
        there = [round for round in found if round is not None]
        message = sum(sizes[arm].values())
        sent = in_bytes(round(statistics.mean(there) * message)) if there else ""
        rows.append((arm, ", ".join("-" if one is None else str(one) for one in found), in_bytes(message), sent))
    title = f"to {REACHED} on unseen clients of {target}"
    note = "rounds: of every seed, - where it is not reached; sent: by a client that is in all of them, the mean of the"
    note += " seeds that reach it"
    return make_table(title, ("trained", "rounds", "a message", "sent"), rows, note)
