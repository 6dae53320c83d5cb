"""FID-all and KID-all from messages, small."""

import json

import pytest
import torch

from fedgen.experiments.paired import privacy as experiment
from fedgen.experiments.paired import privacy as measures
from fedgen.experiments.paired.privacy import Toy
from tests.experiments.tiny_runs import draw_unwritten


@pytest.mark.parametrize("spectrum", ["flat", "falling"])
def test_the_toy_is_what_it_says(spectrum):
    toy = Toy(16, spectrum, 5_000, seed=0)
    clients = toy.clients()
    assert [len(part) for part in clients] == [500] * 10
    within = torch.stack([part.var(0) for part in clients]).mean(0)
    torch.testing.assert_close(within, toy.variances(), rtol=0.12, atol=0)
    assert float(clients[0].mean(0).norm()) == pytest.approx(0.5, abs=0.2)
    generated = toy.generated()
    assert float(generated.mean.norm()) == pytest.approx(0.35)
    torch.testing.assert_close(generated.covariance(0).diag(), 0.8 * toy.variances())


def test_sizes_are_those_of_eight_bytes_a_number():
    sizes = measures.message_sizes(64)
    assert sizes["sums, for FID-all"] == pytest.approx(8 * (1 + 64 + 64 * 65 // 2), abs=400)
    assert sizes["RBF sketch, q = 4000"] == pytest.approx(8 * 8001, abs=400)
    assert sizes["KID, each checkpoint"] < 400


def test_sums_are_exact_and_rounding_falls_with_the_bits():
    found = measures.exactness(Toy(8, "flat", 2_000, seed=0))
    assert found["kid_avg"] < 1e-12
    errors = list(found["fid_all"].values())
    assert errors[0] < 1e-12
    assert 1e-9 < errors[1] < 1e-3  # 16 bits
    assert errors[3] < errors[2] < errors[1]


def test_a_sketch_is_measured_against_the_scores_on_features():
    job = measures.sketch_jobs((100,), draws=6, seed=0)["cubic, centred 100"]
    found = job()
    assert len(found["values"]) == len(found["stated"]) == 6
    assert found["rms"] == pytest.approx(measures.rms([value - found["exact"] for value in found["values"]]))
    assert 0 < found["rms"] < 0.02 * found["exact"]


@pytest.mark.slow
def test_interrupted_in_its_noise_it_goes_on_where_it_was(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(experiment, "DIMS", (4, 8))
    monkeypatch.setattr(experiment, "SIZES", (8,))
    monkeypatch.setattr(experiment, "SKETCHES", (50, 200))
    exact = measures.exactness(Toy(8, "flat", 2_000, seed=0))  # what is measured before the noise, small
    monkeypatch.setattr(experiment, "exactness", lambda toy: exact)
    real, seen, found = measures.noise_bias, [], {}

    def noise_bias(toy: Toy, draws: int):
        seen.append(toy)
        if len(seen) == 3:
            raise KeyboardInterrupt
        found[f"{toy.spectrum} {toy.dim}"] = real(toy, draws)
        return found[f"{toy.spectrum} {toy.dim}"]

    monkeypatch.setattr(experiment, "noise_bias", noise_bias)
    with pytest.raises(KeyboardInterrupt):
        experiment.private_scores(output=tmp_path / "stopped", quick=True)
    draw_unwritten(monkeypatch)
    experiment.private_scores(output=tmp_path / "stopped", quick=True)
    assert [(toy.spectrum, toy.dim) for toy in seen[2:]] == [("falling", 4), ("falling", 4), ("falling", 8)]
    noise = json.loads((tmp_path / "stopped" / "results.json").read_text())["numbers"]["noise"]
    assert noise == json.loads(json.dumps(found))
    assert noise["falling 4"] == json.loads(json.dumps(real(seen[2], 2)))  # as if it had not been interrupted
