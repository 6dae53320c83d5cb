"""What optimizers keep is taken from a checkpoint if it is theirs; what is not, before a step meets it."""

import copy

import pytest
import torch
from torch import nn

from fedgen.federated import FedAdagrad, FedAdam, FedYogi
from fedgen.federated.client_state.optimizer_state import check_optimizer_state, check_slots

HONEST = {
    **{
        name: getattr(torch.optim, name) for name in ("Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adagrad", "RMSprop")
    },
    **{name: getattr(torch.optim, name) for name in ("Adadelta", "Rprop", "ASGD", "SGD", "Adafactor", "LBFGS")},
    "momentum": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True),
    "amsgrad": lambda p: torch.optim.Adam(p, torch.tensor(0.1), amsgrad=True, maximize=True),
    "centred": lambda p: torch.optim.RMSprop(p, 0.1, centered=True, momentum=0.5),
    **{made.__name__: made for made in (FedAdam, FedYogi, FedAdagrad)},
}


def stepped(make, steps=2):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    optimizer = make(list(net.parameters()))
    torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)  # adds a setting

    @torch.enable_grad()
    def loss():
        optimizer.zero_grad()
        (value := net(torch.ones(1, 3)).square().sum()).backward()
        return value

    for _ in range(steps):
        optimizer.step(loss)
    return optimizer


@pytest.mark.filterwarnings("ignore:.*lr_scheduler.step:UserWarning")
@pytest.mark.parametrize("steps", [0, 2])
@pytest.mark.parametrize("name", HONEST)
def test_what_an_optimizer_saved_is_taken(name, steps, tmp_path):
    torch.save(stepped(HONEST[name], steps).state_dict(), tmp_path / "a.pt")
    saved = torch.load(tmp_path / "a.pt", weights_only=True)
    check_optimizer_state(stepped(HONEST[name], 0), saved)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda s: s["state"][0].pop("exp_avg"), "keeps exp_avg of some parameters and not of others"),
        (lambda s: s["state"][0].update(exp_avg=torch.zeros(3, 2)), "exp_avg of parameter 0 is not of its shape"),
        (lambda s: s["state"][0].update(exp_avg_sq=torch.zeros(2, 3).long()), "exp_avg_sq of parameter 0 is not"),
        (lambda s: s["state"][1].update(step=torch.tensor(-1.0)), "step of parameter 1 is not"),
        (lambda s: s["state"][1].update(new=[torch.tensor([float("nan")])]), "new of parameter 1 .* NaN"),
        (lambda s: s["state"].update({4: {}}), "not by the place of one of its 4 parameters"),
        (lambda s: s["param_groups"][0].update(lr=-0.1), "lr is '-0.1', where the model's is '0.001'"),
        (lambda s: s["param_groups"][0].update(lr=10**400), "lr is '1000"),
        (lambda s: s["state"][1].update(step=10**400), "step of parameter 1 is not"),
        (lambda s: s["param_groups"][0].update(betas=(0.9, None)), "betas is"),
        (lambda s: s["param_groups"].append({}), "not that of one with 1 groups"),
    ],
)
def test_what_no_optimizer_saves_is_named(change, said):
    state = copy.deepcopy(stepped(torch.optim.Adam).state_dict())
    change(state)
    with pytest.raises(ValueError, match=said):
        check_optimizer_state(stepped(torch.optim.Adam), state)


def test_groups_may_keep_different_things():
    net = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    groups = [{"params": net[0].parameters(), "amsgrad": True}, {"params": net[1].parameters()}]
    optimizer = torch.optim.Adam(groups, 0.1)
    net(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    check_optimizer_state(torch.optim.Adam(groups, 0.1), optimizer.state_dict())


def test_a_flag_that_an_older_torch_did_not_have_may_be_missing_and_a_rate_may_not():
    state = stepped(torch.optim.Adam).state_dict()
    del state["param_groups"][0]["decoupled_weight_decay"]
    check_optimizer_state(stepped(torch.optim.Adam), state)
    del state["param_groups"][0]["lr"]
    with pytest.raises(ValueError, match="lr is 'None'"):
        check_optimizer_state(stepped(torch.optim.Adam), state)


def test_a_checkpoint_of_training_without_a_schedule_and_names_is_taken():
    state, net = stepped(torch.optim.Adam).state_dict(), nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    del state["param_groups"][0]["initial_lr"]
    optimizer = torch.optim.Adam(net.named_parameters())
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    check_optimizer_state(optimizer, state)
    optimizer.load_state_dict(state)
    optimizer.step()
    schedule.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.0005)


def test_a_rate_that_a_schedule_brought_to_nothing_is_taken():
    """LinearLR multiplies rates as it goes: its 0 is one to rounding."""
    optimizer = stepped(torch.optim.SGD)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1 / 3, 0.0, 5)
    for _ in range(5):
        optimizer.step()
        schedule.step()
    assert -1e-15 < optimizer.param_groups[0]["lr"] < 0
    check_optimizer_state(stepped(torch.optim.SGD), optimizer.state_dict())


class Blocks(torch.optim.SGD):
    """Somebody else's: one number a block."""


def test_of_other_peoples_optimizers_no_shape_is_known():
    optimizer = Blocks([nn.Parameter(torch.zeros(2, 3))], 0.1)
    check_slots(optimizer, {0: {"v": torch.zeros(1), "m": torch.zeros(2, 3)}})
    with pytest.raises(ValueError, match="NaN"):
        check_slots(optimizer, {0: {"v": torch.full((1,), float("nan"))}})


def test_other_peoples_optimizers_may_count_steps_beside_their_parameters():
    optimizer = Blocks([nn.Parameter(torch.zeros(2, 3))], 0.1)
    check_slots(optimizer, {"k": torch.tensor([2]), 0: {"v": torch.zeros(1)}})
    with pytest.raises(ValueError, match="NaN"):
        check_slots(optimizer, {"k": [float("nan")]})
    with pytest.raises(ValueError, match="place"):
        check_slots(torch.optim.SGD(optimizer.param_groups, 0.1), {"k": torch.tensor([2])})
