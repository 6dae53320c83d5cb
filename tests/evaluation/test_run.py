"""A run folder's checkpoints scored again."""

import pytest
import torch
from torch import Tensor, nn

from fedgen.embeddings import ModuleEmbedding
from fedgen.evaluation import Evaluator, Run, append_records, checkpoint_name, evaluate_run
from tests.evaluation.samples import CLIENTS, record


class Painter(nn.Module):
    """Noise around one grey level for all pixels."""

    def __init__(self, level: float = 0.0, side: int = 4) -> None:
        super().__init__()
        self.level = nn.Parameter(torch.tensor(level))
        self.side = side

    def sample(self, num_images: int, generator: torch.Generator | None = None) -> Tensor:
        return torch.randn(num_images, 1, self.side, self.side, generator=generator) * 0.4 + self.level


class TwoLevels(Painter):
    """A model with other weights."""

    def __init__(self) -> None:
        super().__init__()
        self.second = nn.Parameter(torch.zeros(()))


class Counting(nn.Module):
    """Pixels, and how many images it saw."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def forward(self, images: Tensor) -> Tensor:
        self.seen += len(images)
        return images.flatten(1)


@pytest.fixture
def folder(tmp_path):
    for round, level in ((0, -0.5), (3, 0.1)):
        torch.save({"state_dict": Painter(level).state_dict()}, tmp_path / checkpoint_name(round))
    return tmp_path


def judge(embedding="pixels", num_images=40):
    return Evaluator({"train": CLIENTS}, [embedding], num_images, seed=1)


def test_each_checkpoint_is_scored_with_its_own_weights(folder):
    records = evaluate_run(folder, Painter(), judge())
    assert [r.round for r in records if r.name == "fid_all"] == [0, 3]
    assert [r.checkpoint for r in records if r.name == "fid_all"] == ["round=00000.ckpt", "round=00003.ckpt"]
    alone = judge().evaluate(lambda number, draws: Painter(0.1).sample(number, draws).detach(), 3).records
    assert [r.value for r in records if r.round == 3] == [r.value for r in alone]
    assert Run(folder).records == records


def test_scoring_again_with_equal_settings_replaces_and_another_embedding_adds_columns(folder):
    other = ModuleEmbedding(nn.Flatten(), name="other")
    evaluate_run(folder, Painter(), judge())
    evaluate_run(folder, Painter(), judge(other))
    again = evaluate_run(folder, Painter(), judge())
    records = Run(folder).records
    assert Run(folder).columns.embedding == "pixels"
    assert [r for r in records if r.embedding == "pixels"] == again
    assert len(records) == 2 * len(again)


def test_what_a_models_losses_train_on_is_noted_where_nothing_was_scored_before(folder):
    class Trained(Painter):
        optimised_on = ("pixels",)

    assert all(r.is_optimised for r in evaluate_run(folder, Trained(), judge()))


def test_what_a_loss_optimised_stays_noted(folder):
    append_records(folder / "scores.jsonl", [record(round=3, optimised_on=["pixels"])])
    marks = {r.round: r.is_optimised for r in evaluate_run(folder, Painter(), judge())}
    assert marks == {0: False, 3: True}


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (TwoLevels(), "another model than TwoLevels: Missing key"),
        (Painter(side=8), r"samples images of shape \[1, 8, 8\]"),
    ],
)
def test_a_model_that_does_not_fit_is_found_before_any_image_is_embedded(folder, model, message):
    evaluator = judge(ModuleEmbedding(Counting(), name="counting"))
    with pytest.raises(ValueError, match=message):
        evaluate_run(folder, model, evaluator)
    assert evaluator.embeddings[0].network.seen == 0
    assert not Run(folder).scores_path.exists()


def test_missing_checkpoints_are_named(folder, tmp_path_factory):
    with pytest.raises(FileNotFoundError, match="checkpoint"):
        evaluate_run(folder, Painter(), judge(), rounds=[2, 0, 1])
    with pytest.raises(FileNotFoundError, match="checkpoint"):
        evaluate_run(tmp_path_factory.mktemp("empty"), Painter(), judge())
