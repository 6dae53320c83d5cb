import json

import diffusers
import pytest
import torch
from diffusers import DDIMPipeline, DDIMScheduler, DDPMPipeline, DDPMScheduler, UNet2DModel

from fedgen.models import DDPM
from fedgen.models.diffusion.ddpm import read_pretrained, read_schedule
from fedgen.models.diffusion.diffusion_process import NoiseSchedule, Sampler
from fedgen.models.networks import UNet


@pytest.fixture(autouse=True)
def quiet():
    diffusers.utils.logging.disable_progress_bar()


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def make_unet(**options):
    """A network as others make them, with diffusers' own defaults."""
    torch.manual_seed(0)
    settings = {"sample_size": 8, "in_channels": 1, "out_channels": 1, "block_out_channels": (8, 16)}
    settings |= {"down_block_types": ("DownBlock2D", "AttnDownBlock2D"), "layers_per_block": 1, "norm_num_groups": 2}
    settings |= {"up_block_types": ("AttnUpBlock2D", "UpBlock2D"), **options}
    return UNet2DModel(**settings)


def save(folder, unet=None, scheduler=None):
    DDPMPipeline(unet or make_unet(), scheduler or DDPMScheduler(num_train_timesteps=10)).save_pretrained(folder)
    return folder


CASES = [("linear", "epsilon", "fixed_small"), ("squaredcos_cap_v2", "v_prediction", "fixed_large")]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "prediction", "variance"), CASES)
def test_a_folder_of_diffusers_draws_the_pipelines_images(tmp_path, kind, prediction, variance):
    settings = {"beta_schedule": kind, "prediction_type": prediction, "variance_type": variance}
    save(tmp_path, scheduler=DDPMScheduler(num_train_timesteps=10, **settings))
    module = DDPM.from_pretrained(tmp_path)
    theirs = DDPMPipeline.from_pretrained(tmp_path)
    theirs.set_progress_bar_config(disable=True)
    for steps in (10, 4):
        images = module.sample(3, seeded(), solver="ddpm", steps=steps, batch_size=2)
        expected = theirs(3, seeded(), num_inference_steps=steps, output_type="pt").images
        assert torch.allclose(images / 2 + 0.5, expected, atol=1e-4)


@pytest.mark.slow
def test_what_we_save_the_pipeline_draws_alike(make_ddpm, tmp_path):
    module = make_ddpm(sampler=Sampler("ddpm"))
    with torch.no_grad():
        module.network.body.conv_out.weight.mul_(-1)  # the average, which is saved, stays
    module.save_pretrained(tmp_path)
    theirs = DDPMPipeline.from_pretrained(tmp_path)
    theirs.set_progress_bar_config(disable=True)
    expected = theirs(3, seeded(), num_inference_steps=10, output_type="pt").images
    assert torch.allclose(module.sample(3, seeded()) / 2 + 0.5, expected, atol=1e-4)
    files = {path.suffix for path in tmp_path.rglob("*") if path.is_file()}
    assert files == {".json", ".safetensors"}
    module.save_pretrained(tmp_path / "network", average=False)
    assert not torch.equal(DDPM.from_pretrained(tmp_path / "network").sample(3, seeded()), module.sample(3, seeded()))


def test_ddim_equals_diffusers_own_pipeline(make_ddpm, tmp_path):
    module = make_ddpm()
    scheduler = DDIMScheduler(**module.diffusion.schedule.settings("epsilon"), timestep_spacing="trailing")
    theirs = DDIMPipeline(module.averaged.body, scheduler)
    theirs.set_progress_bar_config(disable=True)
    expected = theirs(3, seeded(), num_inference_steps=5, output_type="pt").images
    images = module.sample(3, seeded(), solver="ddim", steps=5)
    assert torch.allclose(images / 2 + 0.5, expected, atol=1e-4)


@pytest.mark.slow
def test_a_saved_folder_comes_back_whole(make_ddpm, tmp_path):
    module = make_ddpm(num_classes=3, schedule=NoiseSchedule("cosine", 10, clip=False), prediction="v")
    module.save_pretrained(tmp_path)
    again = DDPM.from_pretrained(tmp_path)
    assert torch.equal(again.sample(3, seeded(), guidance=2.0), module.sample(3, seeded(), guidance=2.0))
    assert (again.num_classes, again.null_label) == (3, True)
    assert (again.diffusion.schedule, again.diffusion.prediction) == (module.diffusion.schedule, "v")


def test_a_folder_that_held_a_conditional_model_may_hold_another_afterwards(make_ddpm, tmp_path):
    make_ddpm(num_classes=3).save_pretrained(tmp_path)
    make_ddpm().save_pretrained(tmp_path)
    assert DDPM.from_pretrained(tmp_path).num_classes is None


@pytest.mark.slow
def test_other_layouts_are_read_too(tmp_path):
    """A network alone, and everything in one folder, as old models on the hub are."""
    make_unet().save_pretrained(tmp_path / "unet_alone")
    network, schedule, prediction = read_pretrained(tmp_path / "unet_alone")
    assert (schedule, prediction) == (None, None)
    x, t = torch.randn(1, 1, 8, 8), torch.tensor([3])
    assert torch.equal(network(x, t), make_unet()(x, t).sample)
    alone = DDPM.from_pretrained(tmp_path / "unet_alone", schedule="cosine", prediction="v")
    assert alone.diffusion.schedule == NoiseSchedule("cosine")
    make_unet().save_pretrained(tmp_path / "flat")
    DDPMScheduler(num_train_timesteps=7).save_pretrained(tmp_path / "flat")
    assert read_pretrained(tmp_path / "flat")[1] == NoiseSchedule(timesteps=7, variance="fixed_small")


def test_all_rows_of_a_foreign_label_embedding_are_classes(tmp_path):
    module = DDPM.from_pretrained(save(tmp_path, make_unet(num_class_embeds=4)))
    assert (module.num_classes, module.null_label) == (4, False)
    with pytest.raises(ValueError, match="guidance"):
        module.sample(2, guidance=2.0)


@pytest.mark.slow
def test_a_checkpoint_of_a_fine_tuned_model_does_not_need_the_folder(tmp_path):
    import shutil

    folder = save(tmp_path / "base")
    module = DDPM.from_pretrained(folder)
    state = {"state_dict": module.state_dict(), "hyper_parameters": dict(module.hparams)}
    torch.save(state | {"pytorch-lightning_version": "2.6.0"}, tmp_path / "model.ckpt")
    shutil.rmtree(folder)
    loaded = DDPM.load_from_checkpoint(tmp_path / "model.ckpt", weights_only=True)
    assert torch.equal(loaded.sample(2, seeded()), module.sample(2, seeded()))


def test_a_name_on_the_hub_fetches_settings_and_safetensors_alone(tmp_path, monkeypatch):
    import huggingface_hub

    asked = []

    def fetch(name, allow_patterns):
        asked.append((name, allow_patterns))
        return str(save(tmp_path))

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    assert DDPM.from_pretrained("somebody/model").image_shape == (1, 8, 8)
    assert asked == [("somebody/model", ["*.json", "*.safetensors"])]

    def fail(name, allow_patterns):
        raise OSError("no connection")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(FileNotFoundError, match="connection"):
        DDPM.from_pretrained("somebody/model")


# ---- errors ----


def test_pickled_weights_are_refused_with_the_remedy(tmp_path):
    make_unet().save_pretrained(tmp_path, safe_serialization=False)
    with pytest.raises(ValueError, match="use_safetensors"):
        read_pretrained(tmp_path)


def test_folders_that_hold_no_such_model_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="pretrained"):
        read_pretrained("/no/such/folder")
    with pytest.raises(FileNotFoundError, match="diffusers"):
        read_pretrained(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match="JSON"):
        read_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"_class_name": "UNet2DConditionModel"}))
    with pytest.raises(ValueError, match="UNet2DConditionModel"):
        read_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"_class_name": "UNet2DModel"}))
    with pytest.raises(FileNotFoundError, match="diffusion_pytorch_model"):
        read_pretrained(tmp_path)


def test_models_that_predict_variances_are_refused(tmp_path):
    make_unet(out_channels=2).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="out_channels"):
        read_pretrained(tmp_path)


@pytest.mark.parametrize(
    "setting",
    [
        {"prediction_type": "sample"},
        {"beta_schedule": "sigmoid"},
        {"variance_type": "learned"},
        {"thresholding": True},
        {"rescale_betas_zero_snr": True},
        {"trained_betas": [0.1, 0.2]},
    ],
)
def test_schedules_that_fedgen_does_not_have_are_named(tmp_path, setting):
    name = next(iter(setting))
    with pytest.raises(ValueError, match=f"scheduler_config.json: {name}=.* is none that fedgen has"):
        read_schedule(dict(DDPMScheduler(**setting).config), tmp_path / "scheduler_config.json")


@pytest.mark.parametrize("key", ["num_train_timesteps", "beta_start"])
def test_a_schedule_of_another_type_is_named_with_its_file(key, tmp_path):
    config = {**DDPMScheduler().config, key: True}
    with pytest.raises(ValueError, match=rf"scheduler_config.json: {key} is True, which is no"):
        read_schedule(config, tmp_path / "scheduler_config.json")


def test_what_a_folder_brings_is_not_given_again(make_ddpm, tmp_path):
    make_ddpm().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="schedule"):
        DDPM.from_pretrained(tmp_path, schedule="cosine")
    with pytest.raises(ValueError, match="prediction"):
        DDPM.from_pretrained(tmp_path, prediction="v")
    with pytest.raises(ValueError, match="network"):
        make_ddpm(pretrained=str(tmp_path))


def test_only_a_unet_fits_the_folders(make_ddpm, tmp_path):
    class Other(torch.nn.Linear):
        image_shape = (1, 8, 8)

    with pytest.raises(TypeError, match="UNet"):
        DDPM(Other(2, 2)).save_pretrained(tmp_path)
    for own in ({"patch": 2}, {"normalisation": "batch"}):
        with pytest.raises(ValueError, match="save_pretrained"):
            DDPM(UNet(8, 1, (8,), 1, (), **own)).save_pretrained(tmp_path)
    assert not list(tmp_path.iterdir())
