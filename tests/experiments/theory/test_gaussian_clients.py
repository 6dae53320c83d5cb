"""The toy in the plane, small."""

import pytest
import torch

from fedgen.experiments.theory import gaussian_toy as toy


def test_clients_and_generators_are_those_of_the_paper():
    left, right = toy.draw_clients(4_000, seed=0).parts()
    generated = toy.draw_generated(4_000, 3.0, seed=0)
    assert left.mean(0).tolist() == pytest.approx([-1, 0], abs=0.07)
    assert right.mean(0).tolist() == pytest.approx([1, 0], abs=0.07)
    assert generated.var(0).tolist() == pytest.approx([3, 1], rel=0.08)
    assert not torch.equal(generated[:, 1], toy.draw_generated(4_000, 2.0, seed=0)[:, 1])
    assert (len(toy.VARIANCES), toy.VARIANCES[0], toy.VARIANCES[-1]) == (21, 0.1, 4.0)


def test_the_values_of_the_pool_are_those_of_its_scores():
    found = toy.reference_values(1_000, seed=1)
    assert found["fid"] == pytest.approx(4 - 2 * 2**0.5, rel=0.1)
    assert found["kid"] == pytest.approx(31 / 8, rel=0.25)
    assert found["gap"] == pytest.approx(found["kid"], rel=0.02)


@pytest.mark.parametrize(("wrong", "least"), [({"points": 9}, 10), ({"redraws": 1}, 2)])
def test_too_few_points_or_redraws_are_refused(tmp_path, wrong, least):
    with pytest.raises(ValueError, match=f"{least - 1}: give at least {least}"):
        toy.gaussian_toy(output=tmp_path / "out", **wrong)
    assert not (tmp_path / "out").exists()
