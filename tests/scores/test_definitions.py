"""The kit's scores as their classes declare them, and where a reader finds them."""

import re
from dataclasses import dataclass, fields

import pytest

from fedgen.__main__ import main
from fedgen.scores import ScoreDefinition
from fedgen.scores.definitions import definitions


def faults(definition):
    """What a definition's docstring, with those of the classes that it has options from, leaves unexplained."""
    texts = {kind: vars(kind).get("__doc__") or "" for kind in definition.__mro__}
    said = "\n".join(texts.values())
    options = [field.name for field in fields(definition)]
    missing = [name for name in options if not re.search(rf"^ +{name}: ", said, re.MULTILINE)]
    generated = texts[definition].startswith(f"{definition.__name__}(")  # dataclass's own
    return [*(["no docstring"] if generated else []), *missing]


@pytest.mark.parametrize("name", definitions())
def test_a_score_has_a_docstring_that_explains_its_options(name):
    assert faults(definitions()[name]) == []


def test_what_is_left_unexplained_is_found():
    @dataclass(frozen=True)
    class Bare(definitions()["sw1"]):
        width: int = 3

    assert faults(Bare) == ["no docstring", "width"]


@pytest.mark.parametrize("sets", [["nowhere", "pixels"], ["--generated", "nowhere", "--clients", "nowhere"]])
def test_a_question_mark_is_answered_with_all_scores(sets, capsys):
    assert main(["evaluate", *sets, "--scores", "?"]) == 2
    (known,) = re.findall("known: (.*?), and", capsys.readouterr().err)
    assert {*known.split(", "), "metric", "of_class"} == set(definitions())


def test_a_score_without_prepare_is_refused_when_it_is_made():
    class Bare(ScoreDefinition):
        name = "bare"

    class Older(Bare):
        def fit(self, clients):
            return clients

    with pytest.raises(TypeError, match="prepare"):
        Bare()
    assert Older().fit("clients") == "clients"
