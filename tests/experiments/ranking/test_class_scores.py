"""Scores of class generators step by step."""

import pytest

from fedgen.experiments.engine.study import Study
from fedgen.experiments.ranking.class_generators import ClassChoice, measure_all

CHOICE = ClassChoice("digits", embedding="pixels", components=4, num_images=40)


class Counting:
    """Measures nothing and notes what was asked for."""

    def __init__(self, asked):
        self.asked = asked

    def once(self):
        self.asked.append("once")
        return 7

    def __call__(self, generated):
        self.asked.append(len(generated))
        return {"clients": {"fid": len(self.asked)}}


def measured(study, count, asked):
    def make(places, sides):
        asked.append(list(sides))
        return Counting(asked)

    return measure_all(study, CHOICE, {"fid": "FID"}, "first", make, 2, count)


def test_some_generators_of_all_kinds_are_measured_after_the_real_floor_and_once(tmp_path):
    asked = []
    for _ in range(2):
        study = Study("toy", tmp_path, CHOICE.settings())
        found = measured(study, 3, asked)
    assert list(found.kinds.values()) == ["class", "mixture", "neighbourhood"]
    assert asked == [["clients", "IID 0", "IID 1"], "once", 40, 40, 40, 40]
    assert study.numbers["first"] == 7
    assert found.real == {"fid": 3}
    assert [row["fid"] for row in found.rows.clients.values()] == [4, 5, 6]


def test_one_generator_ranks_nothing(tmp_path):
    with pytest.raises(ValueError, match="generators"):
        measured(Study("toy", tmp_path, {}), 1, [])
