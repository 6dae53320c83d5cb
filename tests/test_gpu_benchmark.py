"""What `make bench-gpu` measures runs on a CPU in small, and in full size where nothing is computed."""

import json
import logging
import warnings
from dataclasses import replace

import pytest
import torch
from diffusers import DDPMScheduler

from benchmarks import ddpm, device, evaluation, fastfid, frechet, gpu, mmd2, rounds, stylegan2
from benchmarks.page import page

LEAST = {"rounds": 6, "ddpm": 6, "vectorised": 4, "stylegan2": 7, "losses": 20, "evaluation": 5}  # figures of each part


@pytest.fixture(autouse=True)
def as_a_process_of_its_own(monkeypatch, tmp_path):
    """Precision, threads and Lightning's log are the benchmark's to set; tests' warnings are no errors there."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", torch.backends.cudnn.allow_tf32)
    monkeypatch.chdir(tmp_path)
    log, threads = logging.getLogger("lightning.pytorch"), torch.get_num_threads()
    level = log.level
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    log.setLevel(level)
    torch.set_num_threads(threads)


@pytest.mark.slow
@pytest.mark.parametrize("part", gpu.PARTS)
def test_each_part_runs_in_small_on_a_cpu(part, capsys, monkeypatch):
    for module in (fastfid, frechet, gpu, mmd2, stylegan2):
        monkeypatch.setattr(module, "DIM", 64)  # most of the time would go to as many features as Inception has
    published = stylegan2.configuration
    monkeypatch.setattr(stylegan2, "configuration", lambda **options: replace(published(**options), channel_base=256))
    for name, few in (("CLIENTS", 2), ("PER_CLIENT", 16), ("BATCH", 8)):
        monkeypatch.setattr(rounds, name, few)
    monkeypatch.setattr(evaluation, "OF_CLIENT", 10)
    gpu.main(["--device", "cpu", "--small", "--parts", part])
    out, err = capsys.readouterr()
    assert "failed" not in err
    lines = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    assert "GPU" in lines[0]["machine"]
    figures = [line for line in lines if "value" in line]
    assert len(figures) >= LEAST[part]
    assert [line["name"] for line in figures[-2:]] == [f"the part {part!r} took", "all parts"]
    text = page([out])
    assert "# Figures of the benchmarks on a GPU" in text
    assert "Printed by `make bench-gpu`, one run" in text


def test_loops_that_train_otherwise_are_not_compared():
    rounds.check_agreement(2.0, 2.001)
    with pytest.raises(AssertionError, match="disagree"):
        rounds.check_agreement(2.0, 2.01)


def test_every_part_is_tried():
    assert LEAST.keys() == gpu.PARTS.keys()


def test_the_peers_are_sides_on_one_device_each(monkeypatch):
    seen = []
    monkeypatch.setattr(
        gpu, "compare_peers", lambda sides, workload, *_, device: seen.append((sides, workload)) or [True]
    )
    monkeypatch.setattr(gpu, "gpus", lambda: ["one", "two"])
    assert gpu.measure_peers("cuda", False, ["ours", "pfl"])
    assert [workload for _, workload in seen] == ["small-20", "small-1", "large-1"]
    assert [(side.name, side.processes) for side in seen[0][0]] == [("ours", 1), ("pfl", 1), ("ours", 2), ("pfl", 2)]
    seen.clear()
    gpu.measure_peers("cpu", True, ["ours"])
    assert [(side.name, side.processes) for sides, _ in seen for side in sides] == [("ours", 1)]


@pytest.mark.slow
def test_a_part_that_fails_says_so_and_the_others_go_on(monkeypatch, capsys):
    def fails(device, small):
        raise ArithmeticError("no such number")

    monkeypatch.setattr(gpu, "PARTS", {"one": fails, "two": lambda device, small: True})
    assert gpu.main(["--device", "cpu", "--small", "--parts", "one", "two"]) == 1
    out, err = capsys.readouterr()
    assert "the part 'one' failed" in err
    assert "no such number" in err
    assert "the part 'two' took" in out


@pytest.mark.parametrize("main", [lambda: gpu.main([]), device.main])
def test_where_there_is_no_gpu_a_sentence_says_what_to_do(main, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert main() == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "sees no GPU here" in err
    assert "python -m benchmarks.gpu --device cpu --small" in err


def test_gpus_that_there_are_are_listed(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda number: f"model {number}")
    assert device.main() == 0
    assert capsys.readouterr().out == "GPU 0: model 0\nGPU 1: model 1\n"


@pytest.mark.slow
@pytest.mark.parametrize("part", stylegan2.PARTS)
@pytest.mark.parametrize("plain", [False, True])
def test_stylegan2_in_full_size_has_the_shapes_of_its_steps(part, plain):
    """On the meta device, which computes shapes alone."""
    work = stylegan2.Work(256, 8, "meta")
    with torch.device("meta"), stylegan2.plainly() if plain else warnings.catch_warnings():
        found = stylegan2.PARTS[part](work, stylegan2.make_pair(work, channels_last=not plain))
    assert found.device.type == "meta"
    assert found.shape == ((8, 3, 256, 256) if part == "generator's images" else ())


@pytest.mark.slow
def test_the_ddpm_in_full_size_has_the_shapes_of_its_step():
    setup = replace(ddpm.CIFAR, device="meta")
    with torch.device("meta"):
        network = ddpm.make_model(setup).network.body
    assert 35_000_000 < sum(value.numel() for value in network.parameters()) < 36_500_000
    clean = torch.empty(setup.batch, setup.channels, setup.side, setup.side, device="meta")
    loss = ddpm.noise_loss(network, DDPMScheduler(num_train_timesteps=1000), clean)
    loss.backward()
    assert loss.device.type == "meta"
    assert all(value.grad is not None for value in network.parameters())
