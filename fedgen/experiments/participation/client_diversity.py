"""Images of more and more clients at an equal total: is it better to have few images of many clients, or many of few?

Figure 8 of "What Do We Mean by Generalization in Federated Learning?" (Yuan et al. 2022, arXiv 2110.14216), for a
generator: 5 % x 128 images to 80 % x 8 there. The scored parts are capped as well, so that scores with a bias of few
images, as FID, do not compare across arms; the loss and KID do, on the unseen clients that all arms score.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from fedgen.experiments.engine.arms.gap_numbers import AVERAGES
from fedgen.experiments.engine.arms.gap_runs import GapChoice
from fedgen.experiments.engine.arms.gap_study import named_by_clients, report_arms, run_arms
from fedgen.experiments.engine.paired_seeds import verdict_on
from fedgen.experiments.engine.study import Study
from fedgen.experiments.engine.trainings import Arm
from fedgen.experiments.participation.common_clients import common_scores, common_table

SPLIT = "data.init_args.split.init_args"


def client_diversity(
    output: Path | None = None,
    participating: Sequence[float] = (0.16, 0.31, 0.62, 1.0),
    images: Sequence[int] = (50, 25, 12, 8),
    **options: Any,
) -> None:
    """Scores on seen and unseen clients at about one number of training images, of few clients or of many.

    Args:
        output: folder of results.json and the figure.
        participating: fractions of the clients that may train; a cohort must fit into the least.
        images: of each of them at most, in the same order.
        options: the fields of `GapChoice`.

    Raises:
        ValueError: for another number of images than of fractions.
    """
    if len(participating) != len(images):
        raise ValueError(f"{len(images)} numbers of images for {len(participating)} fractions of clients; give as many")
    choice = GapChoice(**options)
    own = {"participating": list(participating), "images": list(images)}
    study = Study("client-diversity", output, choice.settings() | own)
    arms = [
        Arm(f"x {count}", {f"{SPLIT}.participating": rate, f"{SPLIT}.max_examples": count})
        for rate, count in zip(participating, images)
    ]
    arms = named_by_clients(choice, arms)
    found = run_arms(study, choice, arms)
    first, common = arms[0].name, common_scores(study, choice, arms)
    lines: list[Table | str] = [common_table(common)]
    for arm in arms[1:]:
        for column in AVERAGES:
            text = f"{arm.name}: {column} on the same unseen clients is below that of {first}"
            lines.append(verdict_on(text, (common[column][first], common[column][arm.name]), "less"))
    report_arms(study, found, "as many images of more clients", lines, columns=AVERAGES)
