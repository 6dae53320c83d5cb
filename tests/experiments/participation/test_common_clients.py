"""Arms scored on other clients are compared on those that all of them score."""

import pytest

from fedgen.experiments.participation.gaps_by_setting import means_on_common
from tests.evaluation.samples import record


def scored(**by_client):
    """Records of two rounds: in the first every client has one more."""
    return [
        record(
            "loss",
            "avg",
            0.0,
            round,
            split="unpart",
            per_client=[value + more for value in by_client.values()],
            client_names=list(by_client),
        )
        for round, more in ((4, 1.0), (9, 0.0))
    ]


def test_averages_are_over_the_clients_that_all_arms_score():
    records = {"few": scored(a=1.0, b=3.0), "many": scored(c=100.0, b=2.0, a=1.0)}
    assert means_on_common(records, "loss avg") == ({"few": 2.0, "many": 1.5}, 2)


def test_arms_without_a_client_in_common_do_not_compare():
    with pytest.raises(ValueError, match="unseen"):
        means_on_common({"few": scored(a=1.0), "many": scored(b=1.0)}, "loss avg")
