import pytest
import torch
from torch import nn

from fedgen.models.networks import DCGANCritic, SmallGenerator
from fedgen.models.networks.network import build, describe, find_class, require_shape


def test_a_description_holds_plain_types_and_builds_the_same_network():
    described = describe(SmallGenerator(latent_dim=7, width=2))
    assert described == {
        "class_path": "fedgen.models.networks.dcgan.SmallGenerator",
        "init_args": {"image_size": 8, "channels": 1, "latent_dim": 7, "width": 2},
    }
    rebuilt = build(described, "generator")
    assert isinstance(rebuilt, SmallGenerator)
    assert rebuilt(torch.zeros(2, 7)).shape == (2, 1, 8, 8)


def test_a_module_is_taken_as_it_is():
    network = DCGANCritic(width=2)
    assert build(network, "critic") is network


@pytest.mark.parametrize("class_path", ["os.system", "torch.nn.modules.linear.Linear", "fedgen.io.files.write_json"])
def test_classes_outside_the_models_are_not_imported(class_path):
    with pytest.raises(ValueError, match="load_from_checkpoint"):
        build({"class_path": class_path, "init_args": {}}, "critic")


@pytest.mark.parametrize("class_path", ["fedgen.models.sampling.decode", "fedgen.models.networks.small.Gone"])
def test_only_networks_are_built(class_path):
    with pytest.raises(ValueError, match="network"):
        build({"class_path": class_path, "init_args": {}}, "generator")


@pytest.mark.parametrize(
    "class_path",
    [
        "fedgen.models.adversarial.WassersteinGP",
        "fedgen.models.ddpm.DDPM",
        "fedgen.models.flow.Glow",
        "fedgen.models.fine_tuning.FineTuning",
        "fedgen.models.networks.small.SmallGenerator",
        "fedgen.models.stylegan2.ada.AdaptiveAugment",
        "fedgen.models.stylegan2.augment.Augment",
    ],
)
def test_files_that_name_a_module_of_an_earlier_release_are_read(class_path):
    found = find_class(class_path)
    assert isinstance(found, type)
    assert found.__name__ == class_path.rpartition(".")[2]


def test_a_foreign_network_is_described_without_arguments():
    described = describe(nn.Linear(2, 3))
    assert described == {"class_path": "torch.nn.modules.linear.Linear"}
    with pytest.raises(ValueError, match="checkpoint"):
        build(described, "generator")


def test_wrong_shapes_are_named():
    with pytest.raises(ValueError, match="critic"):
        require_shape(torch.zeros(1, 3, 32, 32), (1, 8, 8), "the critic")
