"""The published name is one configuration of the GAN core, with the paper's values."""

import torch

from fedgen.models import GAN, WGANGP, WassersteinGP
from fedgen.models.networks import SmallCritic, SmallGenerator


def networks():
    torch.manual_seed(0)
    return SmallGenerator(latent_dim=3, width=2), SmallCritic(width=2)


def test_the_papers_values_are_the_defaults():
    module = WGANGP(*networks())
    assert isinstance(module.loss, WassersteinGP)
    assert (module.loss.penalty, module.n_critic) == (10.0, 5)


def test_it_is_the_core_with_that_game():
    module, core = WGANGP(*networks(), penalty=3.0, lr=0.1), GAN(*networks(), WassersteinGP(3.0), n_critic=5, lr=0.1)
    assert module.state_dict().keys() == core.state_dict().keys()
    assert module.hparams["penalty"] == core.hparams["loss"]["init_args"]["penalty"] == 3.0
    shared = module.hparams.keys() - {"penalty"}
    assert shared == core.hparams.keys() - {"loss"}
    assert all(module.hparams[name] == core.hparams[name] for name in shared)
