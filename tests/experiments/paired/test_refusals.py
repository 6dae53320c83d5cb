"""What experiments over paired seeds refuse before any work."""

import sys
from pathlib import Path

import pytest

from fedgen.experiments.paired.communication_interval import communication_interval
from fedgen.experiments.paired.cost_curves import asynchronous_rounds, compressed_updates, flow_choices
from fedgen.experiments.paired.distributed_fid_loss import distributed_fid_loss
from fedgen.experiments.paired.fid_finetune import fid_finetune
from fedgen.experiments.paired.fid_loss_artifacts import fid_loss_artifacts
from fedgen.experiments.paired.fid_loss_gans import digits_fid_loss, fid_loss_gans
from fedgen.experiments.paired.mmd2_finetune import mmd2_finetune
from fedgen.experiments.paired.privacy import privacy_cost, private_scores
from fedgen.experiments.participation.gaps_by_setting import server_optimizers

NAMED = Path("recipes/nowhere.yaml")


@pytest.fixture(autouse=True)
def _recipes(tmp_path, monkeypatch):
    """The kit's recipes, and some that are none of a federation."""
    monkeypatch.chdir(tmp_path)
    Path("recipes").symlink_to(Path(__file__).parents[3] / "recipes")
    Path("central.yaml").write_text("trainer: {max_epochs: 3}")
    Path("text.yaml").write_text("no recipe")
    Path("some").mkdir()
    Path("some/dcgan_digits.yaml").write_text("trainer: {max_epochs: 2}")
    Path("endless").mkdir()
    for data in ("digits", "mnist5k"):
        Path(f"endless/dcgan_{data}.yaml").write_text("trainer: {}")


@pytest.mark.parametrize(
    ("experiment", "options", "message"),
    [
        (digits_fid_loss, {"seeds": 1}, "seeds=1: give at least 2"),
        (digits_fid_loss, {"seed": -1}, "seed=-1"),
        (digits_fid_loss, {"recipe": NAMED}, r"nowhere.yaml does not exist.*--recipe"),
        (digits_fid_loss, {"recipe": Path("text.yaml")}, "text.yaml must say max_epochs"),
        (compressed_updates, {"rounds": 7}, "rounds=7, checks=30: evaluations come after as many rounds.*rounds=30"),
        (asynchronous_rounds, {"rounds": 7}, "rounds=7, checks=10: 10 evaluations are to come.*rounds=200"),
        (asynchronous_rounds, {"rounds": 10, "under_way": 5}, "rounds=10"),
        (asynchronous_rounds, {"buffer_size": 0}, "buffer_size=0: give at least 1"),
        (asynchronous_rounds, {"spread": -1.0}, "spread=-1.0: give at least 0"),
        (asynchronous_rounds, {"recipe": NAMED}, r"nowhere.yaml does not exist.*--recipe"),
        (flow_choices, {"iterations": 120}, "iterations=120 are no rounds of 2 clients x 50 iterations"),
        (flow_choices, {"cohorts": (2, 5)}, r"cohorts=\[2, 5\]: the recipe has 2; name others"),
        (flow_choices, {"widths": ()}, "widths=.*: give numbers of at least 1"),
        (flow_choices, {"intervals": (1, 10)}, r"intervals=\[1, 10\]: the recipe has 10; name others"),
        (flow_choices, {"recipe": NAMED}, r"nowhere.yaml does not exist.*--recipe"),
        (distributed_fid_loss, {"kid_weight": 0.0}, "kid_weight=0: a loss needs a positive weight"),
        (distributed_fid_loss, {"recipe": Path("central.yaml")}, "must say the communication_interval"),
        (fid_finetune, {"data": "celeba"}, "no fine-tuning for data 'celeba'; choose one of digits, mnist5k"),
        (fid_finetune, {"data": "cifar10"}, "no fine-tuning for data 'cifar10'"),  # though it has generators
        (fid_finetune, {"embedding": "efficientnet-lite0"}, "has the network of efficientnet-lite0-32"),
        (fid_finetune, {"data": "mnist5k", "embedding": "classifier-mnist5k"}, "was trained on images of mnist5k"),
        (fid_finetune, {"steps": 7}, "all layers: 0 step.* at least 8"),
        (fid_finetune, {"steps_both": 0, "quick": True}, "two embeddings: 0 step.* at least 2"),
        (fid_finetune, {"precision": "half"}, "precision='half': give one of bf16-mixed, 16-mixed, or none"),
        (fid_loss_artifacts, {"embedding": "pixels"}, "embedding='pixels' is the one that FID is optimised in"),
        (fid_loss_artifacts, {"recipes": Path("some")}, r"wgan_gp_digits_fid.yaml does not exist"),
        (fid_loss_gans, {"networks": ("biggan",)}, r"networks=\['biggan'\]: give one or more of sngan, dcgan, sagan"),
        (fid_loss_gans, {"networks": ()}, "networks="),
        (fid_loss_gans, {"arms": ("ema", "ema")}, "arms=.*each once"),
        (fid_loss_gans, {"arms": ("without",)}, "arms=.*minibatch, queue, ema"),
        (fid_loss_gans, {"embedding": "pixels"}, "embedding='pixels' is the one that FID is optimised in"),
        (fid_loss_gans, {"picture_rounds": 0}, "picture_rounds=0"),
        (fid_loss_gans, {"networks": ("dcgan",), "recipes": Path("some")}, r"dcgan_mnist5k.yaml does not exist"),
        (fid_loss_gans, {"networks": ("dcgan",), "recipes": Path("endless")}, r"dcgan_digits.yaml must say max_epochs"),
        (communication_interval, {"kinds": ("gan",)}, r"kinds=\['gan'\]: give one or more of wgan-gp, ddpm"),
        (communication_interval, {"intervals": (2, 2)}, r"intervals=\[2, 2\]"),
        (communication_interval, {"iterations": 640}, "iterations=640 are no two or more rounds of 640: .* 1280"),
        (communication_interval, {"iterations": 1285, "intervals": (1, 10)}, "no two or more rounds of 10"),
        (communication_interval, {"num_images": 1}, "num_images=1: give at least 2"),
        (communication_interval, {"dealings": 0}, "dealings=0: give at least 1"),
        (communication_interval, {"checkpoints": 1}, "checkpoints=1: give at least 2"),
        (communication_interval, {"embedding": "pixels"}, "name another"),
        (communication_interval, {"embedding": "nothing"}, "unknown embedding 'nothing'"),
        (communication_interval, {"device": "cuda:99"}, "device 'cuda:99' cannot be used here"),
        (mmd2_finetune, {"judge": "efficientnet-lite0-32"}, "has the network of efficientnet-lite0"),
        (mmd2_finetune, {"client_images": 25}, "client_images=25.* multiples of 2 and 4"),
        (mmd2_finetune, {"rounds": 6}, "rounds=6: .* multiples of 2 and 4"),
        (mmd2_finetune, {"centres": (1, 2, 2), "clients": 3}, "give 3 different ones"),
        (mmd2_finetune, {"weight": 0.0}, "weight=0.0"),
        (mmd2_finetune, {"network": Path("none.safetensors")}, r"no file none.safetensors; to make one"),
        (mmd2_finetune, {"network": Path("text.yaml")}, r"text\.yaml"),
        (privacy_cost, {"noise": (0.0,)}, "noise=.* positive multiples"),
        (private_scores, {"images": 500}, "images=500: give at least 1000"),
        (server_optimizers, {"adaptive_lr": (0.1,)}, "give three rates, of FedAdam, FedAdagrad, FedYogi"),
    ],
)
def test_options_that_cannot_be_are_refused_before_any_work(experiment, options, message):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        experiment(output=Path("out"), **options)
    assert not Path("out").exists()
    assert not Path("checkpoints").exists()


def test_without_the_extra_no_flow_is_trained(monkeypatch):
    monkeypatch.setitem(sys.modules, "normflows", None)
    with pytest.raises(ModuleNotFoundError, match="fedgen"):
        fid_loss_artifacts(output=Path("out"))
    assert not Path("out").exists()
