from types import SimpleNamespace

import pytest
from torch import nn

from fedgen.losses import DistributedLoss, FastFIDLoss, MMD2Loss, OneMessageLoss
from fedgen.losses.distributed import Traffic
from fedgen.models.distributed_fine_tuning import TrafficAccount, check_strategy, loss_of_form


@pytest.mark.parametrize(("form", "kind"), [("exact", DistributedLoss), ("message", OneMessageLoss)])
def test_a_form_asks_clients_by_a_loss_of_its_own(form, kind):
    assert type(loss_of_form(MMD2Loss(), form)) is kind
    given = kind(MMD2Loss())
    assert loss_of_form(given, form) is given


def test_locally_the_loss_is_each_clients_own_and_the_one_given_stays():
    given = FastFIDLoss(aggregate="avg")
    assert (loss_of_form(given, "local").aggregate, given.aggregate) == ("own", "avg")
    with pytest.raises(ValueError, match="DistributedLoss"):
        loss_of_form(DistributedLoss(MMD2Loss()), "local")


@pytest.mark.parametrize(("form", "federated", "remedy"), [("local", False, "FedAvgStrategy"), ("exact", True, "auto")])
def test_a_form_names_the_strategy_that_it_needs(form, federated, remedy):
    with pytest.raises(ValueError, match=f"{remedy}.*, got Mine"):
        check_strategy(form, federated, "Mine")
    check_strategy(form, not federated, "Mine")


def test_turns_count_by_what_travels_and_a_failed_one_by_what_was_sent_to_it():
    round, account = SimpleNamespace(bytes_sent=100, bytes_received=130), TrafficAccount()
    account.add_turn(round, completed=True)
    account.add_turn(round, completed=False)
    assert account.total([]) == Traffic(down=2 * 130, up=100, questions=0)


def test_what_losses_asked_is_added_and_told_once():
    asking = DistributedLoss(MMD2Loss())
    account = TrafficAccount(Traffic(10, 20, 1))  # of a checkpoint
    total = account.total([asking, nn.Flatten()])
    assert account.tell(total) == (Traffic(0, 0, 0), False)
    account.add_turn(SimpleNamespace(bytes_sent=5, bytes_received=5), completed=True)
    since, is_first = account.tell(account.total([asking]))
    assert (since, is_first) == (Traffic(5, 5, 0), False)
    assert TrafficAccount().tell(Traffic(7, 0, 0)) == (Traffic(7, 0, 0), True)
