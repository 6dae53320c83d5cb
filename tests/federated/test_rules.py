"""Which rule applies to which name, and that rules of other names are refused."""

from typing import ClassVar

import pytest
from torch import nn

from fedgen.federated.client_state.exchange import Rules, check_rules


class Inner(nn.Module):
    federated_rules: ClassVar[dict] = {"queue*": "personal", "steps": "max"}


class Special(Inner):
    federated_rules: ClassVar[dict] = {"queue_ptr": "server"}


class Outer(nn.Module):
    federated_rules: ClassVar[dict] = {"inner.*": "mean", "other": "server"}

    def __init__(self, inner):
        super().__init__()
        self.inner = inner


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("inner.queue", "personal"),
        ("inner.queue_ptr", "personal"),
        ("inner.steps", "max"),
        ("inner.weight", "mean"),  # by the outer part, whose pattern is relative to it
        ("other", "server"),
        ("queue", None),
        ("inner2.queue", None),
    ],
)
def test_the_innermost_part_that_declares_a_rule_decides(name, rule):
    assert Rules({}, Outer(Inner())).rule_of([name]) == rule


def test_a_subclasss_patterns_come_before_its_parents():
    rules = Rules({}, Outer(Special()))
    assert rules.rule_of(["inner.queue_ptr"]) == "server"
    assert rules.rule_of(["inner.queue"]) == "personal"


def test_a_modules_own_patterns_come_before_its_classs():
    inner = Special()
    inner.federated_rules = {"queue": "mean"}
    rules = Rules({}, Outer(inner))
    assert rules.rule_of(["inner.queue"]) == "mean"
    assert rules.rule_of(["inner.queue_ptr"]) == "server"


def test_the_strategys_own_rules_come_first_in_their_order():
    rules = Rules({"inner.queue": "mean", "*queue*": "max", "nowhere": "server"}, Outer(Inner()))
    assert rules.rule_of(["inner.queue"]) == "mean"
    assert rules.rule_of(["inner.queue_ptr"]) == "max"
    assert rules.rule_of(["inner.steps"]) == "max"
    assert rules.unmatched == ["nowhere"]


def test_a_tied_tensor_goes_by_any_of_its_names():
    assert Rules({"b.*": "server"}, nn.Module()).rule_of(["a.weight", "b.weight"]) == "server"
    assert Rules({}, Outer(Inner())).rule_of(["elsewhere", "inner.queue"]) == "personal"


def test_rules_of_other_names_are_refused_with_the_place_where_they_stand():
    with pytest.raises(ValueError, match="personal"):
        Rules({"a": "sum"}, nn.Module())
    with pytest.raises(ValueError, match="dictionary"):
        check_rules("rules", ["a"])

    class Wrong(nn.Module):
        federated_rules: ClassVar[dict] = {"a": "average"}

    with pytest.raises(ValueError, match="federated_rules"):
        Rules({}, Outer(Wrong()))
