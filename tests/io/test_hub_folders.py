"""Folders of weights of diffusers and transformers: what is checked is what is used, and it equals what they load."""

import json
import os
import shutil

import diffusers
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BitImageProcessor, CLIPTextConfig, CLIPTextModel, Dinov2Config, Dinov2Model

from fedgen.embeddings.backbones import load_transformers
from fedgen.io.tensor_files import copied_settings, read_weights
from fedgen.models.autoencoders import read_autoencoder
from fedgen.models.diffusion.ddpm import read_pretrained
from fedgen.models.networks.diffusers_networks import embed_prompts
from tests.io.test_regular_files import in_time
from tests.quick import first_quick
from tests.tiny_clip import make_tokenizer

HUGE = {"block_out_channels": [40_000, 40_000]}


@pytest.fixture(autouse=True)
def quiet():
    diffusers.utils.logging.disable_progress_bar()


def make_unet():
    torch.manual_seed(0)
    blocks = {"down_block_types": ("DownBlock2D", "AttnDownBlock2D"), "up_block_types": ("AttnUpBlock2D", "UpBlock2D")}
    return diffusers.UNet2DModel(8, 1, 1, block_out_channels=(8, 16), layers_per_block=1, norm_num_groups=2, **blocks)


def make_vae():
    torch.manual_seed(0)
    blocks = {"down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2}
    sizes = {"block_out_channels": (4, 4), "norm_num_groups": 2, "latent_channels": 2, "sample_size": 8}
    return diffusers.AutoencoderKL(3, 3, **blocks, **sizes)


def write_texts(folder):
    torch.manual_seed(0)
    folder.parent.mkdir(exist_ok=True)
    tokenizer, words = make_tokenizer(folder.parent / "letters")
    tokenizer.save_pretrained(folder.parent / "tokenizer")
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    ends = {"bos_token_id": words - 2, "eos_token_id": words - 1, "pad_token_id": words - 1}
    config = CLIPTextConfig(vocab_size=words, max_position_embeddings=12, **sizes, **ends)
    CLIPTextModel(config).save_pretrained(folder)


def write_backbone(folder):
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28, "patch_size": 14}
    Dinov2Model(Dinov2Config(**sizes)).save_pretrained(folder)
    BitImageProcessor(size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28}).save_pretrained(folder)


STEM = {True: "diffusion_pytorch_model", False: "model"}
FOLDERS = {  # name: (of diffusers?, a writer, a reader, settings of an enormous network)
    "unet": (True, lambda folder: make_unet().save_pretrained(folder), read_pretrained, HUGE),
    "vae": (True, lambda folder: make_vae().save_pretrained(folder), read_autoencoder, HUGE),
    "texts": (False, write_texts, lambda folder: embed_prompts(folder.parent, ["a cat"]), {"vocab_size": 10**6}),
    "backbone": (False, write_backbone, lambda folder: load_transformers(str(folder)), {"hidden_size": 40_000}),
}


def rewrite(path, change):
    state = load_file(path)
    change(state)
    save_file(state, path, {"format": "pt"})


def index_of(path, file):
    shards = {"metadata": {}, "weight_map": dict.fromkeys(load_file(path), file)}
    path.with_name(f"{path.name}.index.json").write_text(json.dumps(shards))


def only_index(path, file):
    index_of(path, file)
    path.rename(path.with_name("kept.safetensors"))


def spoil(state):
    state[min(state)].flatten()[0] = torch.nan


def pickled(path):
    torch.save(load_file(path), path.with_name("pytorch_model.bin"))
    path.unlink()


def pipe_as_index(path):
    path.unlink()
    os.mkfifo(path.with_name(f"{path.name}.index.json"))


def pipe(path):
    path.unlink()
    os.mkfifo(path)


HOSTILE = {
    "an index beside an honest file": (lambda path: index_of(path, "other.safetensors"), "holds both"),
    "an index of a pickle": (lambda path: only_index(path, "weights.bin"), "lists 'weights.bin', which is no file of"),
    "an index that leads out": (lambda path: only_index(path, "../a.safetensors"), r"lists '\.\./a\.safetensors'"),
    "an index of a file that is not there": (lambda path: only_index(path, "b.safetensors"), r"b\.safetensors"),
    "an index that is a pipe": (pipe_as_index, "is a pipe"),
    "a pipe": (pipe, "is a pipe"),
    "pickles": (pickled, r"as \.bin, which is a pickle"),
    "NaN": (lambda path: rewrite(path, spoil), "holds NaN or infinity"),
    "a weight less": (lambda path: rewrite(path, lambda state: state.pop(max(state))), "missing"),
    "whole numbers": (
        lambda path: rewrite(path, lambda state: state.update({max(state): state[max(state)].long()})),
        "is torch.int64 there, and torch.float32",
    ),
}


def refuses(read, folder, reason):
    with in_time(20), pytest.raises((ValueError, OSError), match=reason) as raised:
        read(folder)
    assert str(folder.parent) in str(raised.value)


@pytest.mark.parametrize("name", FOLDERS)
def test_folders_whose_weights_are_not_those_of_the_settings_are_refused(name, tmp_path):
    of_diffusers, write, read, huge = FOLDERS[name]
    write(tmp_path / "honest" / "text_encoder")
    stem = STEM[of_diffusers]
    for number, (damage, reason) in enumerate(HOSTILE.values()):
        copy = shutil.copytree(tmp_path / "honest", tmp_path / str(number)) / "text_encoder"
        damage(copy / f"{stem}.safetensors")
        refuses(read, copy, reason)
    folder = tmp_path / "honest" / "text_encoder"
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | huge))
    refuses(read, folder, "of a larger network than")
    (folder / "config.json").write_text(json.dumps(config))
    if name != "backbone":  # the heads of a classifier are none of its features'
        rewrite(folder / f"{stem}.safetensors", lambda state: state.update(more=torch.zeros(1)))
        refuses(read, folder, "unexpected")


def test_settings_of_a_tokenizer_are_regular_files_of_a_bounded_size(tmp_path, monkeypatch):
    write_texts(tmp_path / "text_encoder")
    path = tmp_path / "tokenizer" / "tokenizer_config.json"
    pipe(path)
    refuses(lambda _: embed_prompts(tmp_path, ["a"]), tmp_path / "x", r"pipe.*tokenizer_config\.json")
    with in_time(), pytest.raises(OSError, match="pipe"), copied_settings(path.parent):
        pass
    path.unlink()
    monkeypatch.setattr("fedgen.io.tensor_files._LARGEST_SETTINGS", 10)
    refuses(lambda _: embed_prompts(tmp_path, ["a"]), tmp_path / "x", "is larger than 10 bytes")


@pytest.mark.parametrize("name", first_quick(FOLDERS))
def test_shards_are_read_as_one_file(name, tmp_path):
    of_diffusers, write, read, _ = FOLDERS[name]
    write(tmp_path / "whole" / "text_encoder")
    copy = shutil.copytree(tmp_path / "whole", tmp_path / "parts") / "text_encoder"
    path = copy / f"{STEM[of_diffusers]}.safetensors"
    state = load_file(path)
    halves = dict(list(state.items())[::2]), dict(list(state.items())[1::2])
    for number, half in enumerate(halves):
        save_file(half, copy / f"{number}.safetensors", {"format": "pt"})
    places = {key: f"{number}.safetensors" for number, half in enumerate(halves) for key in half}
    path.with_name(f"{path.name}.index.json").write_text(json.dumps({"weight_map": places}))
    path.unlink()
    assert all(torch.equal(value, state[key]) for key, value in read_weights(copy, path.stem, "").items())
    read(copy)
    rewrite(copy / "1.safetensors", lambda half: half.update(more=torch.zeros(1)))
    refuses(read, copy, r"1\.safetensors and .*index\.json differ in 'more'")


# ---- beside the libraries ----


def old_attention(state):
    """As diffusers named attention's projections before its release 0.12."""
    new = {"to_q": "query", "to_k": "key", "to_v": "value", "to_out.0": "proj_attn"}
    for name in [name for name in state if ".attentions." in name and "group_norm" not in name]:
        path, kind = name.rsplit(".", 1)
        own = next(key for key in new if path.endswith(key))
        state[f"{path.removesuffix(own)}{new[own]}.{kind}"] = state.pop(name)


@pytest.mark.parametrize("change", [lambda state: None, old_attention], ids=["today's names", "old names"])
@pytest.mark.parametrize("kind", first_quick(["unet", "vae"]))
def test_networks_of_diffusers_equal_its_own_to_the_bit(kind, change, tmp_path):
    make, read = (make_unet, lambda f: read_pretrained(f)[0]) if kind == "unet" else (make_vae, read_autoencoder)
    theirs = make()
    theirs.save_pretrained(tmp_path)
    rewrite(tmp_path / "diffusion_pytorch_model.safetensors", change)
    loaded, again = type(theirs).from_pretrained(tmp_path, low_cpu_mem_usage=False), read(tmp_path)
    own = again.body.state_dict()
    assert loaded.state_dict().keys() == own.keys()
    assert all(torch.equal(value, own[name]) for name, value in loaded.state_dict().items())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_texts_of_transformers_equal_its_own_to_the_bit(dtype, tmp_path):
    folder = tmp_path / "text_encoder"
    write_texts(folder)
    loaded = CLIPTextModel.from_pretrained(folder)
    loaded.to(dtype).save_pretrained(folder)

    def older(state):  # as releases before 4.31 saved them
        for name in list(state):
            state[name if name.startswith("text_model.") else f"text_model.{name}"] = state.pop(name)
        state["text_model.embeddings.position_ids"] = torch.arange(12)[None]

    rewrite(folder / "model.safetensors", older)
    theirs = CLIPTextModel.from_pretrained(folder)
    assert theirs.dtype == dtype
    from transformers import CLIPTokenizer

    tokenizer = CLIPTokenizer.from_pretrained(tmp_path / "tokenizer")
    tokens = tokenizer(["a cat"], padding="max_length", max_length=12, return_tensors="pt")
    with torch.no_grad():
        expected = theirs.float()(tokens.input_ids)[0]
    assert torch.equal(embed_prompts(tmp_path, ["a cat"]), expected)


def test_features_of_transformers_equal_its_own_to_the_bit(tmp_path):
    write_backbone(tmp_path)
    images = torch.randint(0, 256, (2, 3, 28, 28), dtype=torch.uint8)
    network = load_transformers(str(tmp_path)).network.model
    assert not network.training
    theirs = Dinov2Model.from_pretrained(tmp_path)
    with torch.no_grad():
        found = [model(images / 255).pooler_output for model in (network, theirs)]
    assert torch.equal(*found)


@pytest.mark.parametrize(
    ("extra", "reason"),
    [
        ({"num_hidden_layers": 10**9}, "num_hidden_layers=1000000000 is no size"),
        ({"more": [{"attn_implementation": "owner/kernel"}]}, "attn_implementation='owner/kernel' may run code"),
    ],
)
@pytest.mark.parametrize("name", ["texts", "backbone"])
def test_settings_that_take_memory_themselves_or_name_code_are_refused(name, extra, reason, tmp_path):
    _, write, read, _ = FOLDERS[name]
    folder = tmp_path / "text_encoder"
    write(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | extra))
    refuses(read, folder, reason)
