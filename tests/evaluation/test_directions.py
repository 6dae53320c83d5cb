"""Which way is better, in words."""

from fedgen.evaluation.marks import axis_of, direction_of, say_directions, title_of
from tests.evaluation.samples import record


def test_one_direction_is_said_once_and_two_by_name():
    fid, kid, recall, density = (record(name) for name in ("fid", "kid", "recall", "density"))
    assert say_directions([fid, kid, fid]) == "lower is better"
    assert say_directions([recall, density]) == "higher is better"
    assert say_directions([fid, recall, kid]) == "higher is better for recall, lower for fid, kid"
    assert [direction_of(r) for r in (fid, recall)] == ["lower is better", "higher is better"]


def test_memorisation_is_best_at_a_half():
    both = [record("fid"), record("memorisation")]
    assert say_directions(both).startswith("lower is better; nearest 0.5, the value of a generator without memory")
    assert say_directions(both[1:]).startswith("nearest 0.5")
    mixed = say_directions([record("recall"), *both])
    assert mixed.startswith("higher is better for recall, lower for fid; nearest 0.5")
    assert direction_of(both[1]) == "0.5: no memory"


def test_axes_have_titles():
    titles = [title_of(score) for score in ("fid", "sw1", "kid-rbf", "fd-dinov2", "precision")]
    assert titles == ["FID", "SW1", "KID-RBF", "FD-DINOV2", "Precision"]
    assert axis_of(record("recall")) == "Recall (higher is better)"
