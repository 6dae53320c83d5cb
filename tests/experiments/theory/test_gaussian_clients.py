"""The toy in the plane, small."""

import json

import pytest
import torch

from fedgen.experiments.theory import gaussian_clients as toy


def test_clients_and_generators_are_those_of_the_paper():
    left, right = toy.draw_clients(4_000, seed=0).parts()
    generated = toy.draw_generated(4_000, 3.0, seed=0)
    assert left.mean(0).tolist() == pytest.approx([-1, 0], abs=0.07)
    assert right.mean(0).tolist() == pytest.approx([1, 0], abs=0.07)
    assert generated.var(0).tolist() == pytest.approx([3, 1], rel=0.08)
    assert not torch.equal(generated[:, 1], toy.draw_generated(4_000, 2.0, seed=0)[:, 1])
    assert (len(toy.VARIANCES), toy.VARIANCES[0], toy.VARIANCES[-1]) == (21, 0.1, 4.0)


def test_it_finds_what_the_closed_forms_say(tmp_path, capsys, monkeypatch):
    toy.gaussian_toy(tmp_path, redraws=3, quick=True)
    printed = capsys.readouterr().out
    stored = json.loads((tmp_path / "results.json").read_text())
    assert stored["settings"]["points"] == 2_000
    numbers = stored["numbers"]
    curves = numbers["against closed forms"]["curves"]
    assert max(row["largest z"] for row in curves.values()) < 4
    assert curves["fid_avg"]["least at"] == pytest.approx(1, abs=0.21)
    for curve in ("fid_all", "kid_avg", "kid_all"):
        assert curves[curve]["least at"] == pytest.approx(2, abs=0.21)
    fid, kid = numbers["ranking"]["fid"], numbers["ranking"]["kid"]
    assert kid["inverted"] == []
    assert kid["gap"]["spread"] < 1e-12
    assert len(fid["inverted"]) > 50
    assert fid["control inverted"] == [0]
    assert "as expected: KID's gap is one number" in printed
    assert (tmp_path / "gaussian_toy.png").read_bytes().startswith(b"\x89PNG")
    monkeypatch.setattr(toy, "draw_generated", None)
    toy.gaussian_toy(tmp_path, redraws=3, quick=True)
    assert capsys.readouterr().out == printed


def test_the_values_of_the_pool_are_those_of_its_scores():
    found = toy.reference_values(1_000, seed=1)
    assert found["fid"] == pytest.approx(4 - 2 * 2**0.5, rel=0.1)
    assert found["kid"] == pytest.approx(31 / 8, rel=0.25)
    assert found["gap"] == pytest.approx(found["kid"], rel=0.02)


@pytest.mark.parametrize(("points", "redraws"), [(9, 20), (50, 1)])
def test_too_few_points_or_redraws_are_refused(tmp_path, points, redraws):
    with pytest.raises(ValueError, match="give at least 10 points and 2 redraws"):
        toy.gaussian_toy(tmp_path, points, redraws)
