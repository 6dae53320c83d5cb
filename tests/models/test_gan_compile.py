import copy

import pytest
import torch
from torch._inductor import config, cpu_vec_isa

from fedgen.models import Hinge, WassersteinGP
from tests.models.test_gan_games import make, seeded, train

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*(does not have many workers|LeafSpec|in eval mode)"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),  # dynamo looks at it
]


@config.patch({"cpp.simdlen": 1})  # no vectors, and kept code of others is not taken
@pytest.mark.parametrize("loss", [Hinge(), WassersteinGP()])
def test_compiled_networks_train_as_others_and_leave_the_same_checkpoint(loss, tmp_path, monkeypatch):
    """WGAN-GP differentiates its critic twice, which compiled code cannot: there the generator alone is compiled.

    To C++ the generator of the hinge loss alone; else the compiler's own tracing is enough.
    """
    real, networks = torch.compile, []

    def compile(function):
        networks.append(function.__self__)
        to_code = not loss.penalises_slopes and len(networks) == 1
        return real(function, backend="inductor" if to_code else "aot_eager")

    monkeypatch.setattr(torch, "compile", compile)
    # what vectors the processor has is found by programs that take longer to build than the generator
    monkeypatch.setattr(cpu_vec_isa, "valid_vec_isa_list", list)
    plain, compiled = make(loss, n_critic=2, ema_decay=0.9), make(loss, n_critic=2, ema_decay=0.9, compile=True)
    train(plain, tmp_path)
    trainer = train(compiled, tmp_path)
    assert networks[0] is compiled.generator
    assert compiled.generator._compiled_call_impl is not None
    assert (compiled.critic._compiled_call_impl is None) == loss.penalises_slopes
    found = compiled.state_dict()
    assert found.keys() == plain.state_dict().keys()
    for name, value in plain.state_dict().items():
        assert torch.allclose(found[name].float(), value.float(), atol=1e-4), name
    expected = plain.sample(5, seeded())
    assert torch.allclose(compiled.sample(5, seeded()), expected, atol=1e-3)
    trainer.save_checkpoint(tmp_path / "model.ckpt")
    loaded = type(compiled).load_from_checkpoint(tmp_path / "model.ckpt", weights_only=True)
    assert loaded.compiles
    assert torch.allclose(loaded.sample(5, seeded()), expected, atol=1e-3)
    latents = torch.zeros(8, 3)  # a batch as in training, for which there is code
    assert torch.allclose(copy.deepcopy(compiled.generator)(latents), compiled.generator(latents), atol=1e-5)
