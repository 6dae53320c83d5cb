"""Scores of class generators step by step."""

import pytest

from fedgen.experiments.engine.study import Study
from fedgen.experiments.ranking.classes.class_deal import REAL
from fedgen.experiments.ranking.classes.class_federation import ClassChoice
from fedgen.experiments.ranking.classes.class_scores import dealings_over, measure_all, rows_over

SCORES = {
    "cat": {"clients": {"fid": 1}, "IID 0": {"fid": 2}, "IID 1": {"fid": 3}},
    "dog": {"clients": {"fid": 4}, "IID 0": {"fid": 5}, "IID 1": {"fid": 6}},
}


class Counting:
    """Measures nothing and notes what was asked for."""

    def __init__(self, asked):
        self.asked = asked

    def once(self):
        self.asked.append("once")
        return 7

    def __call__(self, name):
        self.asked.append(name)
        return {"clients": {"fid": len(self.asked)}}


def test_rows_are_those_over_the_clients_or_over_each_dealing():
    assert rows_over(SCORES, "clients", ["dog", "cat"]) == {"dog": {"fid": 4}, "cat": {"fid": 1}}
    assert dealings_over(SCORES, ["cat"], 2) == [{"cat": {"fid": 2}}, {"cat": {"fid": 3}}]


def test_some_generators_of_all_kinds_are_measured_after_the_real_floor_and_once(tmp_path):
    choice, asked = ClassChoice("digits", embedding="pixels", components=4, num_images=40), []
    for _ in range(2):
        study = Study("toy", tmp_path, choice.settings())
        about = measure_all(study, choice, "first", lambda places: Counting(asked), 3)
    assert list(about["kinds"].values()) == ["class", "mixture", "neighbourhood"]
    assert asked == ["once", REAL, *about["kinds"]]
    assert study.numbers["first"] == 7


def test_one_generator_ranks_nothing(tmp_path):
    choice = ClassChoice("digits", embedding="pixels", components=4, num_images=40)
    with pytest.raises(ValueError, match="a ranking needs two generators"):
        measure_all(Study("toy", tmp_path, {}), choice, "first", lambda places: Counting([]), 1)
