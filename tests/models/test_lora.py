import json
import sys
from collections import OrderedDict

import pytest
import torch
from torch import nn

from fedgen.models import DDPM
from fedgen.models.diffusion.lora import (
    LoRA,
    adapter_state,
    add_adapters,
    merge_adapters,
    read_adapters,
    write_adapters,
)

SMALL = LoRA(rank=2, targets=("first", "second"))


class Pair(nn.Module):
    """A linear layer and a convolution."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Conv2d(1, 1, 3, padding=1)

    def forward(self, x):
        return self.second(self.first(x))


def adapted(lora=SMALL):
    torch.manual_seed(0)
    network = Pair()
    add_adapters(network, lora)
    with torch.no_grad():  # an adapter starts as nothing: B = 0
        for name, parameter in network.named_parameters():
            if "lora_B" in name:
                parameter.normal_()
    return network


def test_new_adapters_change_nothing_and_they_alone_train():
    torch.manual_seed(0)
    network = Pair()
    x = torch.randn(2, 1, 4, 4)
    before = network(x)
    add_adapters(network, SMALL)
    assert torch.equal(network(x), before)
    trained = {name for name, parameter in network.named_parameters() if parameter.requires_grad}
    assert len(trained) == 4
    assert all("lora_" in name for name in trained)


def test_an_adapter_adds_its_scaled_product():
    """W x + b + (alpha / rank) B A x."""
    network = adapted(LoRA(rank=2, alpha=6, targets=("first",)))
    layer, x = network.first, torch.randn(3, 4)
    a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    expected = nn.functional.linear(x, layer.base_layer.weight + 3 * b @ a, layer.base_layer.bias)
    assert torch.allclose(layer(x), expected, atol=1e-6)


def test_merging_gives_a_plain_network_that_computes_the_same():
    network = adapted()
    x = torch.randn(2, 1, 4, 4)
    merged = merge_adapters(network)
    assert torch.allclose(merged(x), network(x), atol=1e-5)
    assert merged.state_dict().keys() == Pair().state_dict().keys()
    assert type(merged.first) is nn.Linear
    assert len(adapter_state(network)) == 4  # the original keeps its own


def test_written_adapters_load_here_and_in_peft(tmp_path):
    from peft import PeftModel

    network = adapted()
    write_adapters(network, SMALL, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]
    x = torch.randn(2, 1, 4, 4)
    torch.manual_seed(0)
    again = Pair()
    add_adapters(again, SMALL)
    read_adapters(again, SMALL, tmp_path)
    assert torch.equal(again(x), network(x))
    torch.manual_seed(0)
    assert torch.allclose(PeftModel.from_pretrained(Pair(), tmp_path)(x), network(x), atol=1e-6)


def test_adapters_of_another_rank_or_folder_are_refused(tmp_path):
    write_adapters(adapted(), SMALL, tmp_path)
    wide = LoRA(rank=3, targets=SMALL.targets)
    with pytest.raises(ValueError, match="adapters"):
        read_adapters(adapted(wide), wide, tmp_path)
    with pytest.raises(FileNotFoundError, match="adapter_model"):
        read_adapters(adapted(), SMALL, tmp_path / "elsewhere")


def test_adapters_that_would_act_at_another_scale_are_refused(tmp_path):
    strong = LoRA(rank=2, alpha=6, targets=SMALL.targets)
    write_adapters(adapted(strong), strong, tmp_path)
    with pytest.raises(ValueError, match="LoRA"):
        read_adapters(adapted(), SMALL, tmp_path)
    read_adapters(adapted(strong), strong, tmp_path)

    path = tmp_path / "adapter_config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | {"use_rslora": True}))  # alpha / sqrt(rank)
    with pytest.raises(ValueError, match="scale"):
        read_adapters(adapted(strong), strong, tmp_path)
    path.write_text(json.dumps(config | {"alpha_pattern": {"first": 4}}))
    with pytest.raises(ValueError, match="alpha_pattern"):
        read_adapters(adapted(strong), strong, tmp_path)
    path.unlink()
    with pytest.raises(FileNotFoundError, match="adapter_config"):
        read_adapters(adapted(strong), strong, tmp_path)


def test_an_adapted_embedding_is_written_and_read_here_and_in_peft(tmp_path):
    from peft import PeftModel

    def build():
        torch.manual_seed(0)
        return nn.Sequential(OrderedDict(labels=nn.Embedding(3, 4), last=nn.Linear(4, 2)))

    lora = LoRA(rank=2, targets=("labels", "last"))
    network, again = build(), build()
    for each in (network, again):
        add_adapters(each, lora)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if "lora_" in name:
                parameter.normal_()
    write_adapters(network, lora, tmp_path)
    x = torch.tensor([0, 2, 1])
    assert not torch.allclose(network(x), build()(x), atol=0.1)
    read_adapters(again, lora, tmp_path)
    assert torch.equal(again(x), network(x))
    assert torch.allclose(PeftModel.from_pretrained(build(), tmp_path)(x), network(x), atol=1e-6)
    assert torch.allclose(merge_adapters(network)(x), network(x), atol=1e-5)


def test_merging_leaves_no_settings_of_peft_behind():
    network = nn.Sequential(OrderedDict(body=adapted()))  # as a UNet's own of diffusers lies in fedgen's
    assert not any(hasattr(module, "peft_config") for module in merge_adapters(network).modules())
    assert hasattr(network.body, "peft_config")


def test_settings_out_of_range_and_layers_that_do_not_exist_are_refused():
    with pytest.raises(ValueError, match="adapter"):
        LoRA(rank=0)
    with pytest.raises(ValueError, match="layer"):
        LoRA(targets=())
    with pytest.raises(ValueError, match="third"):
        add_adapters(Pair(), LoRA(targets=("third",)))


def test_without_peft_the_extra_is_named(monkeypatch, make_ddpm):
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ImportError, match="install"):
        make_ddpm(lora=LoRA())


# ---- on a diffusion model ----

pytestmark = pytest.mark.filterwarnings("ignore:.*(does not have many workers|LeafSpec|in eval mode)")


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.slow
def test_training_moves_the_adapters_alone_and_a_checkpoint_brings_them_back(make_ddpm, fit, tmp_path):
    module = make_ddpm(lora=LoRA(rank=2), lr=0.1)
    before = {name: value.clone() for name, value in module.network.state_dict().items()}
    fit(module, batches=1).save_checkpoint(tmp_path / "model.ckpt")
    changed = {name for name, value in module.network.state_dict().items() if not torch.equal(value, before[name])}
    assert changed
    assert all("lora_" in name for name in changed)
    loaded = DDPM.load_from_checkpoint(tmp_path / "model.ckpt", weights_only=True)
    assert torch.equal(loaded.sample(3, seeded()), module.sample(3, seeded()))
    assert loaded.lora == LoRA(rank=2)


@pytest.mark.slow
@pytest.mark.parametrize("ema_decay", [None, 0.5])
def test_both_exports_of_adapters_give_the_models_images(make_ddpm, fit, tmp_path, ema_decay):
    from diffusers import DDPMPipeline
    from peft import PeftModel

    make_ddpm().save_pretrained(tmp_path / "base")
    options = {"lora": LoRA(rank=2), "ema_decay": ema_decay, "lr": 0.1}
    module = DDPM.from_pretrained(tmp_path / "base", **options)
    fit(module)
    images = module.sample(3, seeded())
    assert not torch.allclose(images, make_ddpm().sample(3, seeded()), atol=0.1)

    module.save_pretrained(tmp_path / "merged")
    assert torch.allclose(DDPM.from_pretrained(tmp_path / "merged").sample(3, seeded()), images, atol=1e-3)
    pipeline = DDPMPipeline.from_pretrained(tmp_path / "merged")
    assert not any("lora" in name for name in pipeline.unet.state_dict())

    module.save_pretrained(tmp_path / "adapters", merge=False)
    again = DDPM.from_pretrained(tmp_path / "base", **options)
    again.load_adapters(tmp_path / "adapters")
    assert torch.equal(again.sample(3, seeded()), images)
    unet = PeftModel.from_pretrained(DDPMPipeline.from_pretrained(tmp_path / "base").unet, tmp_path / "adapters")
    x, t = torch.randn(2, 1, 8, 8), torch.tensor([1, 5])
    with torch.no_grad():
        assert torch.allclose(unet.eval()(x, t).sample, module.averaged.eval()(x, t), atol=1e-5)


def test_a_model_without_adapters_takes_none(make_ddpm, tmp_path):
    with pytest.raises(ValueError, match="DDPM"):
        make_ddpm().load_adapters(tmp_path)
