"""The kit's own objects are copied for a message; others, and those that share something, are made anew."""

import threading
import weakref

import pytest
import torch
from torch import nn

from fedgen.embeddings import load_embedding
from fedgen.federated import Mean
from fedgen.flower.client.client_node import ClientNode
from fedgen.flower.client.node_data import NodeData
from fedgen.flower.client.reuse import fit_copies
from fedgen.flower.client.reuse.fit_copies import copies
from fedgen.flower.client.reuse.made_once import MadeOnce
from fedgen.io.files import read_yaml
from fedgen.models.networks import SmallCritic
from tests.cli.test_deploy import ROOT
from tests.flower.runs import app_of, recipe, small_gan
from tests.flower.test_made_once import Doubled, Heard, stateful
from tests.quick import first_quick

pytestmark = [
    pytest.mark.usefixtures("elsewhere"),
    pytest.mark.filterwarnings("ignore:labels are drawn as if:UserWarning"),
]


def client_of(settings, images, folder):
    """A client, and the settings that it makes its objects of."""
    once = MadeOnce()
    client = ClientNode(app_of(settings, folder / "app", 3), NodeData(images / "a"), folder / "state", once=once)
    return client, {**client._settings, "seed_everything": 3}


def made_of(settings, images, folder):
    """A client's objects, just made, and their settings."""
    client, own = client_of(settings, images, folder)
    return client._once.fit(own), own


RECIPES = (  # those whose models need no file
    "quickstart", "dcgan_digits", "ddpm_digits", "ddpm_digits_conditional", "edm_digits", "flow_digits", "glow_digits",
    "sagan_digits", "sngan_digits", "stylegan2_digits", "vae_digits", "wgan_gp_digits_private",
    "wgan_gp_digits_scaffold", "wgan_gp_digits_server_generator",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_the_kits_own_objects_are_copied(name, images, tmp_path):
    own = read_yaml(ROOT / "recipes" / f"{name}.yaml")
    strategy = own["trainer"]["strategy"]  # "auto" of those that are trained centrally
    settings = recipe(2, None, own["model"], **({} if strategy == "auto" else strategy["init_args"]))
    fit, own = made_of(settings, images, tmp_path)
    again = copies(fit, own)
    one, other = again.give(), again.give()
    assert again.num_bytes >= sum(t.nbytes for t in (*fit.model.parameters(), *fit.model.buffers())) > 1000
    for tensor in (*one.model.parameters(), *one.model.buffers()):
        tensor.data.zero_()
    torch.testing.assert_close(other.model.state_dict(), fit.model.state_dict(), rtol=0, atol=0)
    assert len({id(part) for made in (fit, one, other) for part in (*made, made.trainer.strategy)}) == 12


class OwnMean(Mean):
    """Somebody's own."""


class OwnNetwork(SmallCritic):
    """Likewise."""


class OwnSpectral(nn.Linear):
    """A layer of somebody's own, whose class torch makes anew as its own where a parametrization is put on it."""

    def __init__(self):
        super().__init__(64, 1)
        nn.utils.parametrizations.spectral_norm(self)


def own_critic() -> nn.Module:
    """Returns a network of torch's parts alone."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 1))


def critic(name, **options):
    return recipe(2, None, small_gan(critic={"class_path": f"{__name__}.{name}", "init_args": options}))


OWN = {
    "aggregator": recipe(2, aggregator={"class_path": f"{__name__}.OwnMean"}),
    "network": critic("OwnNetwork", width=4),
    "what a function of one's own returns": critic("own_critic"),
    "layers without a shape": recipe(2, None, stateful("Lazy")),
}


@pytest.mark.parametrize("name", first_quick(OWN))
def test_objects_with_a_part_of_somebodys_own_are_made_anew(name, images, tmp_path):
    assert copies(*made_of(OWN[name], images, tmp_path)) is None


def of_the_kit(function):
    """A function as if it were the kit's."""
    function.__module__ = "fedgen.models"
    return function


def with_hook(parameter):
    parameter.register_hook(lambda gradient: gradient)
    return parameter


def with_attribute(parameter):
    parameter.scale = 2
    return parameter


def test_objects_whose_copies_would_not_be_whole_or_share_something_are_made_anew(images, tmp_path, monkeypatch):
    (fit, settings), kept = made_of(recipe(2), images, tmp_path), []
    tensor = torch.zeros(3)
    harmless = [None, 3, (1, "two"), of_the_kit(lambda: 3), {"a": [kept]}, torch.Generator(), nn.Parameter(tensor)]
    shared = [
        of_the_kit(lambda: kept),
        of_the_kit(lambda value=kept: value),
        (of_the_kit(lambda: fit.model),),
        kept.append,
        {"a": weakref.ref(fit.model)},
        [weakref.proxy(fit.model)],
        weakref.WeakKeyDictionary({fit.model: 3}),
        threading.Lock(),
        [tensor, tensor[1:]],
        with_hook(nn.Parameter(torch.zeros(3))),
        with_attribute(nn.Parameter(torch.zeros(3))),
        nn.UninitializedParameter(),
    ]
    of_files = [load_embedding("pixels")]
    somebodys = [lambda: 3, [Doubled()], (stateful,), {"a": Heard()}, OwnSpectral()]
    for values, are_copied in ((harmless, True), (shared + of_files + somebodys, False)):
        for value in values:
            fit.model.__dict__["value"] = value
            assert (copies(fit, settings) is not None) == are_copied, value
    del fit.model.__dict__["value"]
    assert copies(fit, settings) is not None
    monkeypatch.setattr(fit_copies, "MOST_COPIED", 1000)
    assert copies(fit, settings) is None


def test_objects_of_settings_that_name_files_hubs_or_own_code_are_made_anew(images, tmp_path, monkeypatch):
    fit, settings = made_of(recipe(2), images, tmp_path)
    (tmp_path / "weights").touch()
    monkeypatch.chdir(tmp_path)
    for text, are_copied in {
        "cpu": True,
        "critic.*": True,
        "torch.nn.ReLU": True,
        "weights": False,
        "owner/model": False,
        f"{__name__}.own_critic": False,
    }.items():
        settings["model"]["init_args"]["value"] = [{"a": text}]
        assert (copies(fit, settings) is not None) == are_copied, text
