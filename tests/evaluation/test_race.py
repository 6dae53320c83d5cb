"""Further images for the checkpoints that may be the best, and for the chosen one."""

from dataclasses import replace

import pytest
import torch
from lightning.pytorch import LightningModule

from fedgen.clients import FederatedDataModule
from fedgen.clients.partitions import IID
from fedgen.data import Digits
from fedgen.evaluation import Evaluator, Run, append_records, read_records
from fedgen.evaluation.runs.evaluate_run import _features, checkpoint_sampler, quote, race


class Grey(LightningModule):
    """Images of noise about one level of grey, which its checkpoints hold."""

    def __init__(self):
        super().__init__()
        self.level = torch.nn.Parameter(torch.zeros(()))
        self.drawn = []

    def sample(self, num_images, generator=None):
        self.drawn.append(num_images)
        return (self.level + torch.randn(num_images, 1, 8, 8, generator=generator) * 0.3).clamp(-1, 1)


@pytest.fixture(scope="module")
def data():
    return FederatedDataModule(Digits(), IID(2), seed=0)


def write_checkpoint(folder, round, level):
    """The path of a round's checkpoint, of that level of grey."""
    state = {"state_dict": {"level": torch.tensor(level)}, "epoch": round, "pytorch-lightning_version": "2.6.0"}
    path = folder / f"round={round:05d}.ckpt"
    torch.save(state, path)
    return path


@pytest.fixture
def run(tmp_path):
    """Checkpoints of six rounds; digits have a mean of about -0.39, which rounds 2 and 3 are nearest to."""
    for round, level in enumerate((0.9, 0.5, -0.4, -0.38, 0.1, 0.3)):
        write_checkpoint(tmp_path, round, level)
    return tmp_path


def evaluator(data, number, score="kid"):
    return Evaluator(data, ["pixels"], number, [score], seed=0, chunk=50)


@pytest.mark.slow
def test_a_race_draws_for_contenders_alone_and_keeps_the_best(run, data):
    module = Grey()
    found = race(run, module, evaluator(data, 1600), width=None, most=1600)
    assert found.looks[0] == (100, 6)
    assert [images for images, _ in found.looks] == [100, 200, 400, 800, 1600][: len(found.looks)]
    assert {record.round for record in found.records} <= {2, 3}
    assert found.images == sum(module.drawn)
    assert found.images < 1600 * 6 / 2
    stored = read_records(run / "scores.jsonl")
    assert [record.num_generated for record in stored] == [found.looks[-1][0]] * len(found.records)
    assert not list((run / "race").iterdir())
    assert f"{found.images:,} images were drawn" in found.words


def test_images_extend_those_of_scores_with_fewer(run, data):
    found = race(run, Grey(), evaluator(data, 400), width=1e9, most=400)
    again = evaluator(data, found.looks[-1][0])
    module = Grey()
    module.level.data = torch.tensor(-0.38)
    scored = again.evaluate(again.sampler_of(module), 3).records
    values = {record.name: record.value for record in scored if record.split == "train"}
    mine = next(record for record in found.records if record.round == 3)
    assert mine.value == pytest.approx(values["kid_all"], rel=1e-9)


@pytest.mark.slow
def test_a_race_that_was_stopped_goes_on(run, data):
    stopped = Grey()

    def stop(num_images, generator=None):
        if len(stopped.drawn) > 8:
            raise KeyboardInterrupt
        return Grey.sample(stopped, num_images, generator)

    stopped.sample = stop
    with pytest.raises(KeyboardInterrupt):
        race(run, stopped, evaluator(data, 1600), most=1600)
    resumed, whole = Grey(), Grey()
    found = race(run, resumed, evaluator(data, 1600), most=1600)
    assert sum(resumed.drawn) < sum(stopped.drawn) + sum(resumed.drawn)
    (run / "scores.jsonl").unlink()
    again = race(run, whole, evaluator(data, 1600), most=1600)
    assert sum(resumed.drawn) < sum(whole.drawn)
    assert [(one.round, one.value) for one in again.records] == [(one.round, one.value) for one in found.records]


def test_records_of_a_race_and_to_quote_say_what_training_optimised(run, data):
    own = evaluator(data, 100)
    for optimised_on in (["fid"], []):  # a round's scores in several files or embeddings may not all say it
        record = own.evaluate(own.sampler_of(Grey()), 3, optimised_on=optimised_on).records[0]
        append_records(run / "scores.jsonl", [replace(record, score=f"made {len(optimised_on)}")])
    found = race(run, Grey(), evaluator(data, 100), width=1e9, most=100)
    assert next(one for one in found.records if one.round == 3).optimised_on == ["fid"]
    assert quote(run, Grey(), own, 3).optimised_on == ["fid"]


def test_a_stopped_race_does_not_go_on_with_another_checkpoint_of_the_same_name(run, data):
    """Its images would be of weights that are no longer there."""

    def features(level):
        path, own, module = write_checkpoint(run, 3, level), evaluator(data, 100), Grey()
        own.real.prepare()
        return _features(Run(run), checkpoint_sampler(module, path, own)[0], own, path, 3, 50)

    first, drawn = features(0.5)
    assert (drawn, features(0.5)[1]) == (50, 0)
    second, drawn = features(-0.5)
    assert drawn == 50
    assert second.mean() < first.mean()


def test_a_race_is_refused_where_a_score_means_another_thing_at_another_number_of_images(run, data):
    with pytest.raises(ValueError, match="choose by kid"):
        race(run, Grey(), evaluator(data, 100, "fid"), most=100)
    with pytest.raises(ValueError, match="level"):
        race(run, Grey(), evaluator(data, 100), level=1.5)
    for round in range(4):
        (run / f"round={round:05d}.ckpt").unlink()
    with pytest.raises(ValueError, match="three checkpoints"):
        race(run, Grey(), evaluator(data, 100))


def test_the_value_to_quote_is_of_fresh_images(run, data):
    own = evaluator(data, 300)
    found = quote(run, Grey(), own, 3)
    module = Grey()
    module.level.data = torch.tensor(-0.38)
    chosen = next(r for r in own.evaluate(own.sampler_of(module), 3).records if r.name == "kid_all")
    assert (found.name, found.round, found.num_generated) == ("kid_all", 3, 300)
    assert found.value != chosen.value
    assert abs(found.value - chosen.value) < 5 * (found.generated_error + chosen.generated_error)
