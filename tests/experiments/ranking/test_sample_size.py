"""Bias of few images in FID's avg and all, on digits."""

import json
from pathlib import Path

import pytest

from fedgen.experiments.ranking import sample_size as experiment

DIGITS = {"data": "digits", "embedding": "pixels", "components": 4}


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.slow
def test_the_control_holds_the_same_images_so_all_is_the_same():
    measure = experiment.SizeMeasure(
        experiment.ClassSplit(experiment.ImageChoice("digits", embedding="pixels"), (10,)), 4
    )
    classes, iid = measure((10, -1)), measure((10, 0))
    for score in ("fid", "fid pca", "fidc pca", "kid"):
        assert classes["3"][score]["all"] == pytest.approx(iid["3"][score]["all"], rel=1e-9)
        assert classes["3"][score]["avg"] != pytest.approx(iid["3"][score]["avg"], rel=1e-3)


@pytest.mark.slow
def test_quick_takes_the_small_sizes_only_and_what_one_size_cannot_show_is_not_said(capsys):
    experiment.sample_size(**DIGITS, output=Path("out"), sizes=(5, 300), quick=True)
    assert list(json.loads(Path("out/results.json").read_text())["numbers"]["found"]) == ["5"]
    assert "falls with their images" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("wrong", "message"), [({"sizes": (40, 10)}, "from 2, rising"), ({"controls": 0}, "controls=0: give at least 1")]
)
def test_what_cannot_be_compared_is_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        experiment.sample_size(**{**DIGITS, **wrong})


def test_outcomes_are_read_from_the_numbers():
    def row(gap, kid_spread=0.0):
        def gaps(mean, spread=0.0):
            return {"mean": mean, "min": mean, "max": mean + spread, "spread": spread}

        def score(mean, control, spread=0.0):
            return {"gap": gaps(mean, spread), "control gap": [gaps(control)], "control inverted": [1], "inverted": [],
                    "pairs": 3}  # fmt: skip

        kid = {**score(2.0, 0.1, kid_spread), "control inverted": [0]}
        return {"fid": score(20.0, gap), "fid pca": score(20.0, gap / 10), "kid": kid}

    lines = experiment.outcomes({"10": row(4.0), "40": row(1.0)})
    assert all(line.startswith("as expected") for line in lines)
    lines = experiment.outcomes({"10": row(1.0), "40": row(4.0, kid_spread=0.1)})
    assert [line.split(":")[0] for line in lines] == ["not seen", "as expected", "as expected", "not seen"]
