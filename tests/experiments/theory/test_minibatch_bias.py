"""The bias of minibatch FID as a loss, small."""

import json

import pytest

from fedgen.experiments.theory import gaussian_fids
from fedgen.experiments.theory.gaussian_fids import least_scale, measure, minibatch_bias
from tests.experiments.tiny_runs import draw_unwritten


def test_the_minimum_in_theory_by_hand():
    # t = 3, m = 2, c = 2.25: FID of a perfect generator is 3 * 2.5 - 4.5 = 3, the minimum (2.25 / 4.5)^2
    assert least_scale(3.0, trace=3.0, size=2) == pytest.approx(0.25)


@pytest.mark.slow
def test_a_batch_shrinks_the_generator_as_theory_says_and_its_cures_do_not():
    found = measure(dim=8, batch_sizes=(8,), steps=400, queue=400, decay=0.95, seed=0)
    theory = found["theory"]["batch"][0]
    assert theory < 0.7
    scales = {form: values[0] for form, values in found["scale"].items()}
    assert scales["batch"] == pytest.approx(theory, abs=0.03)
    assert min(scales[form] for form in ("queue", "ema", "mmd2")) > 0.9
    assert max(scales[form] for form in ("queue", "ema", "mmd2")) < 1.1


@pytest.mark.parametrize("wrong", [{"dim": 0}, {"batch_sizes": ()}, {"batch_sizes": (8, 1)}])
def test_options_out_of_range_are_refused_before_any_work(tmp_path, wrong):
    with pytest.raises(ValueError, match=rf"{next(iter(wrong))}=.*: give .*at least [12]"):
        minibatch_bias(output=tmp_path / "out", **wrong)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_quick_run_takes_few_steps_in_a_folder_of_its_own(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    draw_unwritten(monkeypatch)
    taken = []

    def few(dim, batch_sizes, steps, *more):
        taken.append((batch_sizes, steps))
        return measure(dim, batch_sizes, 5, *more)

    monkeypatch.setattr(gaussian_fids, "measure", few)
    minibatch_bias(dim=4, batch_sizes=(4, 6, 8, 10), steps=1000, queue=20, quick=True)
    settings = json.loads((tmp_path / "checkpoints" / "minibatch-bias-quick" / "results.json").read_text())["settings"]
    assert taken == [((4, 6, 8), 200)]
    assert (settings["batch_sizes"], settings["steps"], settings["quick"]) == ([4, 6, 8], 200, True)
