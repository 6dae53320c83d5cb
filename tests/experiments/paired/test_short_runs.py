"""Every experiment over paired seeds, whole and as short as it goes: real trainings from the command line."""

import copy
import json
import math
from importlib import import_module
from pathlib import Path

import pytest
import torch
import yaml

from fedgen.experiments.command import reproduce
from fedgen.experiments.engine import trainings
from fedgen.experiments.engine.trainings import component
from fedgen.experiments.paired import communication_interval, cost_curves, fid_loss_gans, privacy
from fedgen.experiments.paired import distributed_fid_loss as distributed
from fedgen.experiments.paired import fid_loss_artifacts as artifacts
from fedgen.experiments.paired import mmd2_finetune as mmd2
from fedgen.experiments.paired.communication_interval import IntervalChoice
from fedgen.experiments.paired.cost_curves import CHANGED, COMPRESSORS, FlowChoice
from fedgen.experiments.paired.distributed_fid_loss import ToySettings
from fedgen.experiments.paired.mmd2_finetune import ARMS, KID_ALL, KID_AVG, TITLES
from fedgen.images import save_png
from tests.experiments.paired.tiny_network import write_network
from tests.experiments.tiny_runs import QUIET, TINY, draw_unwritten, train_in_forks

RECIPES = Path(__file__).parents[3] / "recipes"
UNETS = "diffusers.models.unets.unet_2d"  # which each training would import for seconds


def quiet(name, clients=5):
    """A copy of a shipped recipe, of few clients, whose runs leave scores alone."""
    recipe = yaml.safe_load((RECIPES / name).read_text())
    (scored,) = recipe["trainer"]["callbacks"]
    scored["init_args"] |= QUIET
    recipe["trainer"]["logger"] = False
    recipe["trainer"]["strategy"]["init_args"]["cohort_size"] = min(clients, 3)
    recipe["data"]["init_args"]["partition"] = component("fedgen.clients.partitions.IID", num_clients=clients)
    return write(name, recipe)


def write(name, recipe):
    Path(name).write_text(yaml.safe_dump(recipe))
    return name


def quiet_component(class_path, **options):
    """A part of a recipe, as experiments put it together; evaluations are of few images, in pixels."""
    quieter = {**QUIET, "embeddings": ["pixels"], "num_images": 60}
    return component(class_path, **options | (quieter if class_path.endswith(".FederatedEvaluation") else {}))


def digits(monkeypatch):
    return ["--recipe", quiet("wgan_gp_digits_fid.yaml"), "--rounds", "1", "--seed", "5", "--parallel", "2"]


def check_digits(numbers, folder, printed):
    assert {path.name for path in folder.iterdir() if path.is_dir()} == {
        f"{arm}-{seed}" for arm in ("with", "without") for seed in (5, 6)
    }
    compared = numbers["compared"]
    assert {"fid_avg", "fid_all", "kid_all", "report/fid_all"} <= set(compared)
    assert all("pixels" in row["title"] for row in compared.values())
    assert compared["fid_all"]["mark"] == "*"
    assert compared["fid_all"]["values"] != compared["fid_all"]["without"]
    assert "proves little" in printed


def distributed_losses(monkeypatch):
    few = ToySettings(points=50, kernel_points=20, batch=16, queue=32, steps=5)
    monkeypatch.setattr(distributed, "QUICK_TOY", few)
    recipe = copy.deepcopy(TINY) | {"threads": 1}
    recipe["trainer"]["logger"] = False
    recipe["trainer"]["strategy"]["init_args"]["cohort_size"] = 2
    recipe["model"]["init_args"]["n_critic"] = 1  # of two iterations a round, one is the generator's
    return ["--recipe", write("tiny.yaml", recipe)]


def check_distributed(numbers, folder, printed):
    assert "KID-avg is not trained on digits" in printed
    fids = numbers["digits"]["scores"]["fid_all"]
    assert len({values[0] for values in fids.values()}) == 4  # FID's two losses and KID train models of their own


def gans(monkeypatch):
    monkeypatch.setattr(fid_loss_gans, "QUICK_IMAGES", 40)
    options = ["--networks", "[dcgan]", "--arms", "[ema]", "--pictures", "false", "--recipes", str(RECIPES)]
    return [*options, "--embedding", "efficientnet-lite0-32"]


def check_gans(numbers, folder, printed):
    without, ema = (numbers["digits"][f"dcgan, {arm}, seed 0"]["pixels"]["fid"] for arm in ("without", "ema"))
    assert without != ema


def fewest_artifacts(monkeypatch):
    short = artifacts.Lengths(before=2, after=1, gan_every=2, removed_every=1, flow=1, flow_every=1, images=30)
    monkeypatch.setattr(artifacts, "QUICK", short)
    monkeypatch.setattr(artifacts, "GRID", 2)
    for name in set(artifacts.RECIPES.values()):
        recipe = yaml.safe_load((RECIPES / name).read_text())
        recipe["trainer"]["strategy"]["init_args"]["cohort_size"] = 1
        write(name, recipe)
    return ["--recipes", ".", "--parallel", "2", "--embedding", "classifier-mnist5k"]


def check_artifacts(numbers, folder, printed):
    names = {f"critic stays, seed 0, {rounds} rounds" for rounds in (2, 3)}
    assert set(numbers["WGAN-GP + FID"]) == {*names, "critic removed, seed 0, 3 rounds"}
    assert "pixels" in numbers["floor of Glow"]["scores"]
    assert "mean of 1 seed " in printed


def one_kind(monkeypatch):
    import_module(UNETS)
    recipe = yaml.safe_load((RECIPES / "ddpm_digits.yaml").read_text())
    recipe["model"]["init_args"]["sampler"] = component("fedgen.models.Sampler", steps=3)
    recipe["data"]["init_args"]["partition"] = component("fedgen.clients.partitions.IID", num_clients=3)
    write("ddpm_digits.yaml", recipe)
    monkeypatch.setitem(IntervalChoice.QUICK, "intervals", (2,))
    monkeypatch.setattr(communication_interval, "SIDE", 2)
    few = ["--kinds", "[ddpm]", "--iterations", "4", "--num_images", "20"]
    return [*few, "--recipes", ".", "--embedding", "classifier-mnist5k"]


def check_intervals(numbers, folder, printed):
    runs = sorted(path.name.split("-")[-1] for path in (folder / "runs").iterdir() if path.is_dir())
    assert runs == ["centralised", "local_only", "seed0"]
    assert [(one["round"], one["iterations"]) for one in numbers["checkpoints"].values()] == [(1, 2), (2, 4)] * 3
    fids = {name: row["pixels"]["training images"]["clients"]["fid"]["all"] for name, row in numbers["scores"].items()}
    assert len(set(fids.values())) == 6
    solver = {json.dumps(one["sampling"]) for one in numbers["checkpoints"].values()}
    assert solver == {'{"solver": "dpm-solver++", "steps": 3}'}


def tiny_server(monkeypatch):
    for name, few in (("CHECKPOINTS", 2), ("SIZES", (mmd2.Sketches(250), mmd2.Nystrom(16))), ("MOVES", (1e-5,))):
        monkeypatch.setattr(mmd2, name, few)
    draws = torch.Generator().manual_seed(0)
    for name, least in (("dark", 0), ("bright", 120)):
        (Path("server") / name).mkdir(parents=True)
        for number in range(40):
            save_png(
                f"server/{name}/{number}.png",
                torch.randint(least, least + 120, (1, 8, 8), generator=draws, dtype=torch.uint8),
            )
    options = ["--network", str(write_network()), "--server_data", "server", "--centres", "[1,2,3]", "--clients", "3"]
    options += ["--iterations", "1", "--num_images", "30", "--embedding", "pixels", "--judge", "classifier-mnist5k"]
    return [*options, "--recipes", str(RECIPES)]


def check_mmd2(numbers, folder, printed):
    states = numbers["scores"]["0"]
    shown = {f"{arm}, {shown} images" for arm in ARMS for shown in (32, 64)}
    assert set(states) == {"floor", "start, 0 images", *shown}
    assert set(states["start, 0 images"]["pixels"]) == set(TITLES)
    gaps = [s["pixels"][KID_AVG] - s["pixels"][KID_ALL] for name, s in states.items() if name != "floor"]
    assert max(gaps) - min(gaps) < 1e-9 * abs(gaps[0])
    assert numbers["traffic"]["(a) exact"]["questions"] == 4  # steps
    assert numbers["drift"]["1e-05"][0] < 0.01 < numbers["drift"]["1e-05"][-1]  # equal for one step, to rounding
    for text in ("sent in a run, 3 clients together", "one message against asking", "centres of seed 0: [1, 2, 3]"):
        assert text in printed


def noise_and_privacy(monkeypatch):
    return ["--recipe", quiet("wgan_gp_digits_private.yaml", clients=10), "--noise", "[0.1]", "--runs", "runs"]


def check_privacy(numbers, folder, printed):
    assert list(numbers["scores"]) == ["plain mean", "clipped", "noise 0.1"]
    assert 0 < numbers["epsilon"]["noise 0.1"] < math.inf
    assert len({seeds[0]["kid_all"] for seeds in numbers["scores"].values()}) == 3


def small_messages(monkeypatch):
    for name, few in (("DIMS", (4, 8, 16)), ("SIZES", (8,)), ("SKETCHES", (50, 200, 400))):
        monkeypatch.setattr(privacy, name, few)
    return []


def check_messages(numbers, folder, printed):
    settings = json.loads((folder / "results.json").read_text())["settings"]
    assert settings == {"images": 5_000, "draws": 2, "seed": 0, "quick": True}
    noise = numbers["noise"]
    assert list(noise) == ["flat 4", "flat 8", "falling 4", "falling 8"]
    strong, weak = noise["flat 8"]["0.1"]["clamp"], noise["flat 8"]["8.0"]["clamp"]
    assert min(strong) > 10 * max(map(abs, weak))
    for text in (
        "as expected: FID-all and KID-avg from sums are those on features",
        "as expected: exact accounting takes 77% of the textbook's noise",
        "5,000 images of 10 clients",
        "mean ± deviation of 2 draws",
        "of images are clipped",
        "rms of 8 seeds",
    ):
        assert text in printed


def slow_and_fast(monkeypatch):
    return ["--recipe", quiet("quickstart.yaml"), "--seeds", "1", "--num_images", "20"]


def compressed(monkeypatch):
    few = {name: COMPRESSORS[name] for name in ("QSGD, 4 bits", "signs")}
    monkeypatch.setattr(cost_curves, "COMPRESSORS", few)
    return [*slow_and_fast(monkeypatch), "--rounds", "2", "--cohort", "2"]


def check_asynchronous(numbers, folder, printed):
    curves = {arm: seeds[0] for arm, seeds in numbers["curves"].items()}
    assert {tuple(curve["turns"]) for curve in curves.values()} == {(10, 20)}
    assert curves["FedAvg"]["staleness"] == 0 < curves["FedBuff"]["staleness"]
    assert curves["FedBuff"]["seconds"][-1] < curves["FedAvg"]["seconds"][-1]
    assert len({curve["fid_all"][-1] for curve in curves.values()}) == 2
    assert "cannot be told from one seed: FedBuff takes less simulated time" in printed


def check_compressed(numbers, folder, printed):
    curves = {arm: seeds[0] for arm, seeds in numbers["curves"].items()}
    sent = [curve["message"] for curve in curves.values()]
    assert sent[0] == max(sent)
    assert len(set(sent)) == 3
    assert all(
        curve["megabytes"] == pytest.approx([2e-6 * curve["message"], 4e-6 * curve["message"]])
        for curve in curves.values()
    )
    assert len({curve["fid_all"][-1] for curve in curves.values()}) == 3
    assert "cannot be told from one seed: signs: FID-all is lower" in printed


def small_flow(monkeypatch):
    for name, few in (("intervals", (1,)), ("cohorts", (2,)), ("iterations", 12)):
        monkeypatch.setitem(FlowChoice.QUICK, name, few)
    alone = {name: CHANGED[name] for name in ("BatchNorm", "optimizer kept")}
    others = {key: value for name, own in CHANGED.items() if name not in alone for key, value in own.items()}
    monkeypatch.setattr(cost_curves, "CHANGED", {**alone, "the others": others})  # at once: every option is taken
    recipe = yaml.safe_load(Path(quiet("flow_digits.yaml", clients=4)).read_text())
    network = {"image_size": 8, "channels": 1, "widths": [8], "layers": 1, "attention": [], "num_classes": 10}
    recipe["model"]["init_args"]["network"]["init_args"] = network
    recipe["model"]["init_args"] |= {
        "times": "logit-normal",
        "sampler": {"solver": "euler", "steps": 2},
    }
    import_module(UNETS)
    # three of four clients in each of two rounds: some train twice, with kept states
    return ["--recipe", write("flow.yaml", recipe), "--seeds", "1", "--num_images", "20"]


def check_flow(numbers, folder, printed):
    scores = {arm: seeds[0]["fid_all"] for arm, seeds in numbers["curves"].items()}
    assert all(len(found) == 1 for found in scores.values())
    assert len({found[0] for found in scores.values()}) == len(scores) == 6
    assert "cannot be told from one seed: BatchNorm: FID-all is higher" in printed


RUNS = [
    ("flow-choices", small_flow, check_flow, ("flow_choices.png",)),
    ("compressed-updates", compressed, check_compressed, ("compressed_updates.png",)),
    ("asynchronous-rounds", slow_and_fast, check_asynchronous, ("asynchronous_rounds.png",)),
    ("communication-interval", one_kind, check_intervals, ("communication_interval.png", "samples.png")),
    ("digits-fid-loss", digits, check_digits, ("pairs.png",)),
    ("distributed-fid-loss", distributed_losses, check_distributed, distributed.FIGURES),
    ("fid-loss-gans", gans, check_gans, ("fid_loss_gans.png",)),
    ("fid-loss-artifacts", fewest_artifacts, check_artifacts, ("fid_loss_artifacts.png",)),
    ("mmd2-finetune", tiny_server, check_mmd2, ("mmd2_finetune.png", "mmd2_samples.png")),
    ("privacy-cost", noise_and_privacy, check_privacy, ("privacy_cost.png",)),
    ("private-scores", small_messages, check_messages, ("private_scores.png",)),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options", "check", "figures"), RUNS)
def test_a_quick_run_is_whole_and_prints_again_without_training(
    name, options, check, figures, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    for module in (trainings, distributed):
        monkeypatch.setattr(module, "component", quiet_component)
    train_in_forks(monkeypatch)
    drawn = draw_unwritten(monkeypatch)
    command = [name, "--quick", "--output", "out", *options(monkeypatch)]
    assert reproduce(command) == 0
    first, folder = capsys.readouterr().out, tmp_path / "out"
    check(json.loads((folder / "results.json").read_text())["numbers"], folder, " ".join(first.split()))
    assert {path.name for path in drawn} == set(figures)
    kept = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.ckpt")}
    assert reproduce(command) == 0
    assert capsys.readouterr().out == first
    assert kept == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.ckpt")}
