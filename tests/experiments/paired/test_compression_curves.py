"""What whole and compressed updates are compared by, on curves that can be read off."""

from fedgen.class_paths import import_by_path
from fedgen.experiments.engine.trainings import slug
from fedgen.experiments.paired.cost_curves import COMPRESSORS, WHOLE, CompressedChoice, bytes_lines

SENT = {"megabytes": [10.0, 20.0], "fid_all": [8.0, 4.0], "fid_avg": [9.0, 6.0], "message": 1000}
LESS = {"megabytes": [5.0, 10.0], "fid_all": [8.0, 5.0], "fid_avg": [9.0, 6.0], "message": 500}


def shifted(curve, by):
    return {**curve, "fid_all": [value + by for value in curve["fid_all"]]}


def test_lines_say_what_was_seen_at_as_many_bytes_and_after_as_many_rounds():
    curves = {WHOLE: [shifted(SENT, by) for by in (0.0, 0.2, 0.1)]}
    curves |= {arm: [shifted(LESS, by) for by in (0.0, 0.1, 0.1)] for arm in COMPRESSORS}
    first, second, *_ = bytes_lines(curves)
    assert first.startswith("as expected: QSGD, 8 bits: FID-all is lower than with whole updates of as many bytes")
    assert "-3.03" in first  # 5.0, 5.1, 5.1 beside 8.0, 8.2, 8.1
    assert second.startswith("QSGD, 8 bits: FID-all after as many rounds, less that of whole, differs: +0.967")


def test_arms_have_folders_and_compressors_of_their_own():
    arms = CompressedChoice().arms()
    given = [arm.settings["trainer.strategy"]["init_args"]["compression"] for arm in arms[1:]]
    made = [import_by_path(one["class_path"])(**one.get("init_args", {})) for one in given]
    assert [type(one).__name__ for one in made] == [kind for kind, _ in COMPRESSORS.values()]
    names = [slug(arm.name) for arm in arms]
    assert names == ["whole", "QSGD-8-bits", "QSGD-4-bits", "top-5", "signs", "rank-2"]
