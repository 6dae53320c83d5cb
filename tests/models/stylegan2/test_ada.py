import json
import math

import pytest
import torch

from fedgen.federated.aggregators.mean import Mean
from fedgen.federated.client_state.exchange import Exchange
from fedgen.models.networks.network import build, describe
from fedgen.models.stylegan2.augment import AdaptiveAugment, Augment


def logits(positive, negative):
    return torch.tensor([[2.5]] * positive + [[-0.1]] * negative)


def test_p_moves_by_the_sign_of_r_minus_the_target():
    ada = AdaptiveAugment(target=0.6, kimg=1)  # 10 images move p by 0.01
    ada.observe(logits(9, 1))
    assert float(ada.update(10)) == pytest.approx(0.8)
    assert float(ada.p) == pytest.approx(0.01)
    ada.observe(logits(10, 0))
    ada.update(30)
    assert float(ada.p) == pytest.approx(0.04)
    ada.observe(logits(5, 5))
    assert float(ada.update(20)) == 0
    assert float(ada.p) == pytest.approx(0.02)
    ada.observe(logits(8, 2))
    assert float(ada.update(20)) == pytest.approx(0.6)
    assert float(ada.p) == pytest.approx(0.02)  # exactly on target
    ada.observe(logits(0, 1))
    assert float(ada.update(40)) == -1
    assert float(ada.p) == 0  # not below


def test_p_has_no_upper_limit():
    ada = AdaptiveAugment(kimg=0.001)
    ada.observe(logits(1, 0))
    ada.update(3)
    assert float(ada.p) == 3


def test_a_published_step():
    ada = AdaptiveAugment()  # 64 images, four iterations, 500 kimg
    ada.observe(logits(1, 0))
    ada.update(64 * 4)
    assert float(ada.p) == pytest.approx(0.000512)


def test_r_is_the_mean_over_all_that_was_observed_since_the_last_update():
    ada = AdaptiveAugment()
    ada.observe(logits(4, 0))
    ada.observe(torch.tensor([[-1.0, 0.0]], dtype=torch.float16))  # of any shape and precision; 0 is neither
    assert float(ada.update(1)) == pytest.approx(3 / 6)
    assert math.isnan(float(ada.update(1)))


def test_with_nothing_observed_p_stays():
    ada = AdaptiveAugment(p=0.3)
    ada.update(10_000)
    assert float(ada.p) == pytest.approx(0.3)


def test_a_fixed_p_is_not_moved_but_r_is_measured():
    ada = AdaptiveAugment(target=None, p=0.5)
    ada.observe(logits(3, 1))
    assert float(ada.update(100_000)) == 0.5
    assert float(ada.p) == 0.5


def test_without_an_augmentation_images_stay_and_r_is_measured():
    ada, images = AdaptiveAugment(None), torch.zeros(2, 3, 8, 8)
    assert ada(images) is images
    ada.observe(logits(3, 1))
    assert float(ada.update(100_000)) == 0.5
    assert float(ada.p) == 0


def test_images_are_augmented_with_the_present_p():
    ada, images = AdaptiveAugment(Augment(brightness=1), target=None), torch.ones(50, 1, 4, 4)
    assert torch.equal(ada(images), images)
    ada.p.fill_(1.0)
    assert bool((ada(images) != images).all())
    assert bool((ada.eval()(images) != images).all())


def test_a_run_goes_on_from_its_state():
    ada, resumed = AdaptiveAugment(kimg=1), AdaptiveAugment(kimg=1)
    ada.observe(logits(9, 1))
    ada.update(10)
    ada.observe(logits(1, 1))
    names = ["signs", "count", "augment.p", "augment.Hz_geom", "augment.Hz_fbank"]
    assert list(ada.state_dict()) == names
    resumed.load_state_dict(ada.state_dict())
    for either in (ada, resumed):
        either.observe(logits(8, 0))
        assert float(either.update(20)) == pytest.approx(0.8)
        assert float(either.p) == pytest.approx(0.03)


def test_half_precision_leaves_its_numbers_whole():
    ada = AdaptiveAugment(p=0.0001).half()
    assert {value.dtype for value in ada.state_dict().values()} == {torch.float32}


def test_the_server_averages_p_and_what_an_update_still_needs():
    ada = AdaptiveAugment(kimg=1)
    exchange = Exchange(ada, [], [], fixed=True)
    assert {"signs", "count", "augment.p"} <= set(exchange.shared)
    exchange.snapshot()
    filters, mean = ada.augment.Hz_fbank.clone(), Mean()
    mean.start([exchange.server[name] for name in exchange.shared])
    for client, (positive, negative, weight) in enumerate([(9, 1, 1.0), (4, 6, 3.0)]):
        exchange.load_server()
        ada.observe(logits(positive, negative))
        ada.update(40)  # the first client's p goes to 0.04, the other's stays at 0
        ada.observe(logits(positive, negative))
        mean.add(client, list(exchange.shared.values()), weight)
    for tensor, value in zip(exchange.shared.values(), mean.result()):
        tensor.copy_(value)
    assert float(ada.p) == pytest.approx(0.01)
    assert torch.equal(ada.augment.Hz_fbank, filters)
    assert float(ada.update(0)) == pytest.approx(0.25 * 0.8 + 0.75 * -0.2)  # r of both, by weight


def test_clients_keep_a_p_of_their_own_where_asked():
    patterns = ["*augment.p", "*signs", "*count"]
    assert set(Exchange(AdaptiveAugment(), [], patterns).personal) == {"signs", "count", "augment.p"}


@pytest.mark.parametrize("augment", [None, "bg", Augment(hue=1, hue_max=0.5)])
def test_a_checkpoint_s_description_builds_it_again(augment):
    ada = AdaptiveAugment(augment, target=None, kimg=100, p=0.25)
    described = json.loads(json.dumps(describe(ada)))
    again = build(described, "augment", AdaptiveAugment, "augmentation")
    assert again.settings == ada.settings
    assert float(again.p) == float(ada.p)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"target": 1.5}, r"target must lie in \[-1, 1\]"),
        ({"kimg": 0}, "kimg must be above 0"),
        ({"p": -0.1}, "p must be a finite number of at least 0"),
        ({"augment": "abc"}, "no augmentation is called 'abc'"),
    ],
)
def test_arguments_out_of_range_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        AdaptiveAugment(**arguments)
