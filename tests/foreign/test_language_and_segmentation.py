"""Language models and segmentation nets are what ordinary fits make of them."""

import pytest
import torch
from torch import Tensor

from fedgen.federated import FedAvgStrategy
from tests.foreign.cases import Case, check, images, make_trainer
from tests.foreign.language_and_segmentation import CASES, Segmentation


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_federated_training_is_the_mean_of_ordinary_fits(case: Case) -> None:
    check(case)


def test_what_steps_gather_in_a_list_the_end_of_the_round_reads_of_all_clients() -> None:
    seen: list[dict[str, Tensor]] = []

    class Seen(Segmentation):
        def shared_step(self, image: Tensor, mask: Tensor) -> dict[str, Tensor]:
            seen.append(super().shared_step(image, mask))
            return seen[-1]

    torch.manual_seed(1)
    trainer = make_trainer(FedAvgStrategy(2, seed=0), 1)
    trainer.fit(Seen(), images())
    assert len(seen) == 2 * 3
    assert float(trainer.callback_metrics["train_dataset_iou"]) == pytest.approx(float(Segmentation.dataset_iou(seen)))
