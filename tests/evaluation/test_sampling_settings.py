"""How a model samples: read, changed, stored with every score, and never mixed in silence."""

import pytest
import torch
from torch import nn

from fedgen.evaluation import Run, append_records, checkpoint_name, evaluate_run, mixture, sampler_of, score_table
from fedgen.evaluation.evaluate import Evaluator
from fedgen.evaluation.image_sampling import inside
from fedgen.evaluation.records import change_sampling, sampling_of, say_sampling
from fedgen.models import DDPM, FlowMatching
from tests.evaluation.conditional import CLIENTS, Conditional
from tests.evaluation.samples import record
from tests.evaluation.test_run import Painter

FAST = {"solver": "fast", "steps": 25}


class Steps(Painter):
    """A painter whose darkness depends on its steps."""

    def __init__(self, level: float = 0.0) -> None:
        super().__init__(level, side=6)
        self.sampling = {"steps": 25}

    def sample(self, num_images, generator=None):
        return super().sample(num_images, generator) - self.sampling["steps"] / 100


@pytest.fixture
def folder(tmp_path):
    for round in (0, 3):
        torch.save({"state_dict": Steps().state_dict()}, tmp_path / checkpoint_name(round))
    return tmp_path


def judge():
    return Evaluator(CLIENTS, ["pixels"], num_images=40, seed=1)


def test_a_model_without_settings_has_none_and_takes_none():
    assert sampling_of(Painter()) == {}
    change_sampling(Painter(), {})
    with pytest.raises(ValueError, match="sampling"):
        change_sampling(Painter(), {"steps": 3})


def test_settings_are_changed_by_name():
    model = Conditional()
    change_sampling(model, {"steps": 1000})
    assert sampling_of(model) == {"solver": "fast", "steps": 1000}
    with pytest.raises(ValueError, match="sampling"):
        change_sampling(model, {"step": 1})


def test_settings_are_plain_types():
    model = Conditional()
    model.sampling = {"steps": torch.ones(2)}
    with pytest.raises(TypeError, match="Conditional"):
        sampling_of(model)


def test_a_diffusion_model_says_how_it_samples_and_can_be_told():
    network = nn.Conv2d(1, 1, 1)
    network.image_shape = (1, 8, 8)
    model = DDPM(network, ema_decay=None)
    assert sampling_of(model) == {"solver": "dpm-solver++", "steps": 20}
    change_sampling(model, {"solver": "ddpm"})
    assert sampling_of(model) == {"solver": "ddpm", "steps": 1000}
    assert say_sampling(sampling_of(model)) == "sampled with solver ddpm, steps 1000"
    with pytest.raises(ValueError, match="solver"):
        change_sampling(model, {"solver": "dpm"})


def test_settings_that_a_solver_brings_come_with_it_or_not_at_all():
    network = nn.Conv2d(1, 1, 1)
    network.image_shape = (1, 8, 8)
    model = FlowMatching(network, ema_decay=None)
    before = sampling_of(model)
    with pytest.raises(ValueError, match="sampling"):
        change_sampling(model, {"rtol": 1e-3})
    for settings in ({"solver": "dopri5", "order": 5}, {"solver": "dopri5", "rtol": -1.0}, {"steps": 3, "order": 5}):
        with pytest.raises(ValueError, match=r"no sampling setting 'order'|tolerances are positive"):
            change_sampling(model, settings)
        assert sampling_of(model) == before
    change_sampling(model, {"solver": "dopri5", "rtol": 1e-3})
    assert sampling_of(model) == {"solver": "dopri5", "rtol": 1e-3, "atol": 1e-5}


def test_samplers_made_of_others_sample_as_these_do():
    sample = sampler_of(Conditional())
    assert sample.sampling == FAST
    assert inside(torch.no_grad, sample).sampling == FAST
    assert mixture([sample, sample], torch.tensor([0.5, 0.5])).sampling == FAST
    assert mixture([sample], torch.ones(1)).num_classes is None


def test_records_keep_the_settings_and_tables_print_them():
    kept = record(sampling=FAST)
    assert type(kept).from_json(kept.to_json()) == kept
    assert "sampling" not in record().to_json()
    assert kept.conditions != record().conditions
    caption = score_table([kept]).caption
    assert "sampled with solver fast, steps 25" in caption


def test_scores_of_other_settings_stand_beside_and_no_column_mixes(folder):
    evaluate_run(folder, Steps(), judge())
    before = Run(folder).records
    model = Steps()
    model.sampling = {"steps": 50}
    evaluate_run(folder, model, judge(), rounds=[0])
    with pytest.warns(UserWarning, match="checkpoint"):
        assert Run(folder).records == before
    assert {r.round: r.sampling["steps"] for r in Run(folder, "sampled with steps 50").records} == {0: 50}


def test_scoring_again_with_the_same_settings_says_nothing(folder):
    evaluate_run(folder, Steps(), judge())
    evaluate_run(folder, Steps(), judge())
    append_records(Run(folder).scores_path, [])
    assert len(Run(folder).records) == len({r.identity for r in Run(folder).records})
