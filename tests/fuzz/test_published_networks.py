"""Damaged networks in the forms in which others publish them: folders of diffusers, and CLIP as TorchScript."""

import json

import diffusers
import pytest
import torch
from safetensors.torch import load_file, save_file

from fedgen.embeddings import load_embedding
from fedgen.io.tensor_files import read_safetensors, write_safetensors
from fedgen.models.diffusion.ddpm import read_pretrained, read_schedule_file
from fedgen.models.diffusion.diffusion_process import PREDICTIONS
from tests.fuzz.damage import fuzz, refuses
from tests.models.test_pretrained import make_unet, save
from tests.quick import first_and_others

WEIGHTS, CONFIG, SCHEDULER = (
    "unet/diffusion_pytorch_model.safetensors",
    "unet/config.json",
    "scheduler/scheduler_config.json",
)


@pytest.fixture
def folder(tmp_path):
    diffusers.utils.logging.disable_progress_bar()
    return save(tmp_path)


def read(path):
    return read_pretrained(path.parents[1])


def is_network(found, expected):
    """safetensors have no checksum, and nor has text: what is read has the form of what was written."""
    shapes = [{name: value.shape for name, value in one[0].state_dict().items()} for one in (found, expected)]
    return shapes[0] == shapes[1] and all(value.isfinite().all() for value in found[0].state_dict().values())


@pytest.mark.parametrize("name", [WEIGHTS, CONFIG])
def test_damaged_folders_are_refused_or_have_their_form(tmp_path, name, copies):
    blocks = {"down_block_types": ("DownBlock2D",), "up_block_types": ("UpBlock2D",), "block_out_channels": (8,)}
    save(tmp_path, make_unet(**blocks))
    fuzz(read, tmp_path / name, is_network, copies=copies, least=300)


def test_damaged_schedules_are_refused_or_have_their_form(folder, copies):
    def is_schedule(found, _):
        schedule, prediction = found
        return 0 < schedule.beta_start <= schedule.beta_end < 1 and prediction in PREDICTIONS

    fuzz(read_schedule_file, folder / SCHEDULER, is_schedule, copies=copies, least=300)


def test_a_folder_with_other_weights_or_names_is_refused(folder):
    """diffusers itself draws a missing tensor at random, and warns."""
    tensors = load_file(folder / WEIGHTS)
    name = next(name for name, tensor in tensors.items() if tensor.shape == (16,))
    values = (torch.full((16,), float("nan")), torch.zeros(8), torch.zeros(16).long(), None)
    renamed = {f"{key}s" if key == "conv_in.weight" else key: tensor for key, tensor in tensors.items()}
    for state in [*({**tensors, name: value} for value in values), renamed]:
        kept = {key: tensor.clone() for key, tensor in state.items() if tensor is not None}
        save_file(kept, folder / WEIGHTS, {"format": "pt"})
        refuses(read, folder / WEIGHTS, what=sorted(kept))


CHANGES = {
    CONFIG: [
        *[{"block_out_channels": value} for value in ([10**9, 16], [8], [8, "16"], None, "8", 3, [-8, 16])],
        *[{"layers_per_block": value} for value in (10**9, -1, "1", None)],
        *[{"in_channels": value} for value in (3, 2**40, 0, "1", None)],
        *[{"sample_size": value} for value in (None, "8", [8], {})],
        *[{"down_block_types": value} for value in (["os.system", "DownBlock2D"], ["DownBlock2D"] * 10**5, None)],
        *[{"_class_name": value} for value in ("UNet2DConditionModel", None, 3, ["UNet2DModel"])],
    ],
    SCHEDULER: [
        *[{"num_train_timesteps": value} for value in (10**12, 0, -1, "10", None, [10])],
        *[{"beta_end": value} for value in (float("nan"), -1, 2, "0", None)],
        *[{"clip_sample": value} for value in ("yes", 3, None, [])],
        *[{"beta_schedule": value} for value in ("none", None, 3, [], {})],
        *[{"prediction_type": value} for value in ("sample", None, [])],
    ],
}


@pytest.mark.parametrize(("name", "changes"), first_and_others(CHANGES))
def test_a_folder_of_other_settings_is_refused(folder, name, changes):
    path = folder / name
    sound = json.loads(path.read_text())
    for change in changes:
        path.write_text(json.dumps(sound | change))
        refuses(read, path, what=change)


@pytest.mark.slow
def test_a_folder_that_says_no_number_of_classes_is_refused(folder):
    for text in ("null", "[]", "{}", '{"num_classes": 0}', '{"num_classes": "3"}', '{"num_classes": 2.5}'):
        (folder / "fedgen.json").write_text(text)
        refuses(lambda path: read_pretrained(path.parent), folder / "fedgen.json", what=text)


def test_damaged_weights_of_clip_are_refused_or_harmless(clip_weights, tmp_path, copies):
    path = tmp_path / clip_weights.name
    write_safetensors(path, *read_safetensors(clip_weights))  # with a hash, which others' files lack
    images = torch.zeros(1, 3, 32, 32, dtype=torch.uint8)
    fuzz(lambda path: load_embedding("clip-vit-b-32", weights=path)(images), path, copies=copies, least=400)
