"""A pretrained network of texts, tiny and random, beside diffusers' own pipeline, and its adapters over clients."""

import copy
import shutil
import sys
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import huggingface_hub
import pytest
import torch
import yaml
from diffusers import AutoencoderKL as Theirs
from diffusers import DDIMScheduler, StableDiffusionPipeline, UNet2DConditionModel, UNet2DModel
from jsonargparse import _typehints
from transformers import CLIPTextConfig, CLIPTextModel

from fedgen.__main__ import main
from fedgen.clients import FederatedDataModule
from fedgen.clients.partitions import ByClass
from fedgen.data import Examples
from fedgen.evaluation import Run
from fedgen.federated import FedAvgStrategy
from fedgen.hub import from_pretrained, save_pretrained
from fedgen.images import save_png
from fedgen.models import DDPM, EDM, FlowMatching, LatentSpace, PromptUNet
from fedgen.models.diffusion.diffusion_process import NoiseSchedule, Sampler, make_scheduler
from fedgen.models.diffusion.lora import LoRA
from fedgen.models.networks.diffusers_networks import embed_prompts
from tests.tiny_clip import make_tokenizer
from tests.trainers import quiet_trainer, same_state

pytestmark = pytest.mark.filterwarnings("ignore:.*(does not have many workers|LeafSpec|in eval mode|exists and is not)")

RECIPE = Path(__file__).parents[3] / "recipes" / "ddpm_prompts.yaml"
PROMPTS = ["a cat", "a dog", "a bee"]
DDIM = Sampler("ddim", 4)
SCHEDULE = NoiseSchedule("scaled_linear", 20, 0.00085, 0.012, clip=False)


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory):
    """The folder of a pipeline."""
    torch.manual_seed(0)
    root = tmp_path_factory.mktemp("pipeline")
    tokenizer, words = make_tokenizer(root / "letters")
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    ends = {"bos_token_id": words - 2, "eos_token_id": words - 1, "pad_token_id": words - 1}
    encoder = CLIPTextModel(CLIPTextConfig(vocab_size=words, max_position_embeddings=12, **sizes, **ends))
    unet = UNet2DConditionModel(
        sample_size=4,
        in_channels=2,
        out_channels=2,
        block_out_channels=(8, 16),
        layers_per_block=1,
        norm_num_groups=2,
        attention_head_dim=4,
        cross_attention_dim=16,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
    )
    blocks = {"down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2}
    vae = Theirs(3, 3, **blocks, block_out_channels=(4, 4), norm_num_groups=2, latent_channels=2, sample_size=8)
    scheduler = DDIMScheduler(steps_offset=1, clip_sample=False)
    parts = {"vae": vae, "text_encoder": encoder, "tokenizer": tokenizer, "unet": unet, "scheduler": scheduler}
    none = dict.fromkeys(("safety_checker", "feature_extractor", "image_encoder"))
    StableDiffusionPipeline(**parts, **none, requires_safety_checker=False).save_pretrained(root / "whole")
    return root / "whole"


@pytest.fixture(scope="module")
def theirs(pipeline):
    found = StableDiffusionPipeline.from_pretrained(pipeline, low_cpu_mem_usage=False)
    found.set_progress_bar_config(disable=True)
    return found


KINDS = {DDPM: {"schedule": SCHEDULE}, EDM: {}, FlowMatching: {}}


@cache
def read(place):
    return PromptUNet(PROMPTS, place)


def make(pipeline, kind=DDPM, **options):
    network = copy.deepcopy(read(str(pipeline)))
    torch.manual_seed(0)
    return kind(network, **KINDS[kind], autoencoder=str(pipeline), **options)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.slow
@pytest.mark.parametrize("guidance", [1.0, 3.0])
def test_images_of_labels_are_the_pipelines_of_their_prompts(pipeline, theirs, guidance):
    model = make(pipeline, sampler=DDIM)
    theirs.scheduler = make_scheduler(DDIM, SCHEDULE, "epsilon")
    latents = torch.randn(3, 2, 4, 4, generator=seeded())
    options = {"num_inference_steps": 4, "guidance_scale": guidance, "latents": latents, "output_type": "pt"}
    expected = theirs([PROMPTS[2], PROMPTS[0], PROMPTS[2]], **options).images
    images = model.sample(3, seeded(), torch.tensor([2, 0, 2]), guidance=guidance)
    assert torch.allclose(images / 2 + 0.5, expected, atol=1e-4)
    assert not torch.allclose(images[0], model.sample(3, seeded(), torch.tensor([1, 0, 2]))[0], atol=1e-4)


@pytest.mark.slow
def test_prompts_are_embedded_as_the_pipeline_does(pipeline, theirs):
    expected, empty = theirs.encode_prompt(PROMPTS, "cpu", 1, True)
    found = embed_prompts(pipeline, [*PROMPTS, ""])
    assert torch.allclose(found[:3], expected, atol=1e-6)
    assert torch.allclose(found[3], empty[0], atol=1e-6)
    assert torch.equal(PromptUNet(PROMPTS, str(pipeline)).prompt_embeddings, found)


@pytest.fixture
def hub(pipeline, tmp_path, monkeypatch):
    """A hub with the pipeline as "owner/pipeline", of which those files are copied here that are asked for."""
    there, here = shutil.copytree(pipeline, tmp_path / "there"), tmp_path / "here"
    (there / "unet" / "model.py").write_text("raise SystemExit")
    (there / "tokenizer" / "merges.txt").write_text("#version: 0.2\n")  # as older tokenizers have it

    def snapshot_download(name, allow_patterns):
        assert name == "owner/pipeline"
        for file in there.rglob("*.*"):
            path = str(file.relative_to(there))
            if any(fnmatch(path, pattern) for pattern in allow_patterns):
                (here / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(file, here / path)
        return str(here)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    return here


@pytest.mark.slow
def test_a_name_on_the_hub_is_its_pipeline_without_code_and_pickles(hub, pipeline):
    model, named = make(pipeline), make("owner/pipeline").state_dict()
    assert all(torch.equal(value, named[name]) for name, value in model.state_dict().items())
    assert {file.suffix for file in hub.rglob("*.*")} == {".json", ".safetensors", ".txt"}
    assert [file.name for file in hub.rglob("*.txt")] == ["merges.txt"]


def test_an_autoencoders_name_on_the_hub_is_that_of_the_folder(hub, pipeline):
    spaces = [LatentSpace(place) for place in ("owner/pipeline", str(pipeline))]
    assert spaces[0].fingerprint() == spaces[1].fingerprint()


@pytest.mark.slow
def test_a_shared_folder_of_a_network_of_prompts_needs_no_pipeline(pipeline, tmp_path):
    model = make(pipeline, lora=LoRA(rank=2, targets=("to_q", "to_v")))
    for value in model.parameters():
        torch.nn.init.normal_(value, std=0.1, generator=seeded(1))
    save_pretrained(model, tmp_path)
    again, labels = from_pretrained(tmp_path), torch.tensor([2, 1])
    assert again.network.settings == model.network.settings
    assert torch.equal(again.network.prompt_embeddings, model.network.prompt_embeddings)
    drawn = [one.sample(2, seeded(), labels, steps=2, guidance=2.0) for one in (model, again)]
    assert torch.equal(*drawn)


def test_without_labels_the_empty_prompt_is_asked_for(pipeline):
    network, noisy, times = PromptUNet(PROMPTS, str(pipeline)), torch.randn(2, 2, 4, 4), torch.tensor([3, 5])
    assert torch.equal(network(noisy, times), network(noisy, times, torch.tensor([3, 3])))
    assert not torch.equal(network(noisy, times), network(noisy, times, torch.tensor([0, 3])))


def train(model, folder, rounds=1, ckpt_path=None):
    """Trains over three clients of a class each, one of them a round for two iterations."""
    images = torch.randint(0, 256, (12, 3, 8, 8), dtype=torch.uint8, generator=seeded())
    examples = Examples(images, torch.tensor([0] * 6 + [1] * 4 + [2] * 2), "noise/train", ("cat", "dog", "bee"))
    trainer = quiet_trainer(rounds, strategy=FedAvgStrategy(2, seed=0, cohort_size=1), default_root_dir=folder)
    trainer.fit(
        model, FederatedDataModule(examples, ByClass(), batch_size=2, held_out=0.0, seed=0), ckpt_path=ckpt_path
    )
    return trainer


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_adapters_alone_train_and_travel_over_clients(pipeline, tmp_path, kind):
    model = make(pipeline, kind, lora=LoRA(rank=2, targets=("to_q", "to_k", "to_v", "to_out.0")), ema_decay=None)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    exchange = train(model, tmp_path).strategy.exchange
    adapters = {name: value for name, value in model.named_parameters() if "lora_" in name}
    assert exchange.shared.keys() == adapters.keys()
    assert exchange.num_bytes == 4 * sum(value.numel() for value in adapters.values())
    moved = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert moved == {*adapters, "label_frequencies.counts"} & moved
    assert any("lora_B" in name for name in moved)


@pytest.mark.slow
def test_training_resumes_to_the_bit_and_checkpoints_need_no_folder(pipeline, tmp_path):
    whole, part, resumed = (
        make(pipeline, lora=LoRA(rank=2, targets=("to_q", "to_v")), ema_decay=None) for _ in range(3)
    )
    train(whole, tmp_path, 2).save_checkpoint(tmp_path / "two.ckpt")
    train(part, tmp_path, 1).save_checkpoint(tmp_path / "one.ckpt")
    train(resumed, tmp_path, 2, tmp_path / "one.ckpt")
    assert same_state(whole, resumed)
    again = DDPM.load_from_checkpoint(tmp_path / "two.ckpt", weights_only=True)
    assert again.network.settings == whole.network.settings
    labels = torch.tensor([2, 1])
    drawn = [one.sample(2, seeded(), labels, steps=2, guidance=2.0) for one in (whole, again)]
    assert torch.equal(*drawn)


def test_what_is_not_a_pipeline_of_texts_is_told(pipeline, tmp_path):
    with pytest.raises(ValueError, match="prompts"):
        PromptUNet([], str(pipeline))
    with pytest.raises(ValueError, match="pipeline"):
        PromptUNet(PROMPTS)
    with pytest.raises(FileNotFoundError, match="diffusers"):
        PromptUNet(PROMPTS, str(tmp_path))
    with pytest.raises(FileNotFoundError, match="tokenizer"):
        embed_prompts(tmp_path, PROMPTS)
    blocks = {"down_block_types": ("DownBlock2D",) * 2, "up_block_types": ("UpBlock2D",) * 2}
    sizes = {"block_out_channels": (4, 4), "norm_num_groups": 2, "attention_head_dim": 4}
    UNet2DModel(8, 1, 1, **sizes, **blocks).save_pretrained(tmp_path / "unet")
    with pytest.raises(ValueError, match="UNet2DConditionModel"):
        PromptUNet(PROMPTS, str(tmp_path))
    config = dict(PromptUNet(PROMPTS, str(pipeline)).settings["config"])
    with pytest.raises(ValueError, match="out_channels"):
        PromptUNet(PROMPTS, config=config | {"in_channels": 4})


@pytest.mark.slow
def test_the_recipe_names_the_folder_that_it_wants_and_with_it_trains_adapters(pipeline, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["fedgen"])
    # which names all classes for each string that may be one's, for a second
    monkeypatch.setattr(_typehints, "get_all_subclass_paths", cache(_typehints.get_all_subclass_paths))
    assert main(["fit", "--config", str(RECIPE)]) == 2
    assert "pretrained='pipeline' is no folder" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
    shutil.copytree(pipeline, "pipeline")
    noise = torch.randint(0, 256, (2, 2, 5, 3, 8, 8), dtype=torch.uint8, generator=seeded())
    for owner, theirs in zip("ab", noise):
        for kind, images in zip(("cat", "dog"), theirs):
            for number, image in enumerate(images):
                save_png(tmp_path / "photographs" / owner / kind / f"{number}.png", image)
    evaluation = {"embeddings": ["pixels"], "num_images": 4, "report": False, "page": False}
    callbacks = [{"class_path": "fedgen.callbacks.FederatedEvaluation", "init_args": evaluation}]
    trainer = {"accelerator": "cpu", "precision": "32-true", "max_epochs": 1, "callbacks": callbacks}
    Path("smaller.yaml").write_text(yaml.safe_dump({"trainer": trainer}))
    short = [
        "--trainer.strategy.init_args.communication_interval",
        "1",
        "--trainer.strategy.init_args.cohort_size",
        "2",
    ]
    short += ["--model.init_args.sampler.steps", "2", "--data.init_args.num_workers", "0"]
    short += ["--data.init_args.data.init_args.size", "8"]
    assert main(["fit", "--config", str(RECIPE), "--config", "smaller.yaml", *short]) == 0
    records = [record for record in Run("checkpoints/ddpm_prompts").records if record.is_model]
    assert {(record.round, record.num_clients, record.sampling["guidance"]) for record in records} == {(0, 2, 3.0)}
