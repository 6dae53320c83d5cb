"""Scores of arms beside their controls."""

from fedgen.experiments.engine.scored_arms import REAL_IMAGES, SCORES, TITLES, ScoredArms, states_in


def scores(value):
    return {"pixels": dict.fromkeys(SCORES, value)}


def arms(**more):
    states = {"usual": {2: [scores(0.5), scores(0.7)]}, "own": {1: [scores(0.9)] * 2, 2: [scores(0.6), scores(0.8)]}}
    about = {"titles": {"fid": "FID", "recall": "recall"}, "used": {"own": ("pixels",)}}
    return ScoredArms(states, [scores(0.1)], **{**about, "beside": {"own": ("usual", None)}, **more})


def test_arms_are_compared_in_every_embedding_and_score():
    found = arms(titles=TITLES).rows("own")["pixels"]
    assert tuple(found) == SCORES
    assert {score: row["improved"] for score, row in found.items()} == {
        "fid": 0, "fid, held out": 0, "recall": 2, "coverage": 2, "trace": 2
    }  # fmt: skip
    assert arms().rows("usual")["pixels"]["fid"] == {"values": [0.5, 0.7]}


def test_an_arm_is_told_beside_an_earlier_place_of_its_own():
    assert round(arms().row("own", "pixels", "fid", since=1)["difference"], 9) == -0.2
    line = arms().verdict("it falls", "own", "pixels", "fid", "less", since=1)
    assert line.startswith("cannot be told from these 2 seeds: it falls: -0.2 (")


def test_the_table_has_means_differences_marks_and_what_explains_them():
    lines = [(("real",), REAL_IMAGES), None, (("first",), "usual"), (("second",), "own")]
    table = arms().table("scores", "pixels", ["arm"], lines, "the usual", ["a note"])
    assert [str(cell) for cell in table.columns[0].cells] == ["real", "first", "second"]
    assert [str(cell).split("\n")[0] for cell in table.columns[1].cells] == ["0.1", "0.6", "0.7 *"]
    assert [str(cell).split("\n")[:2] for cell in table.columns[2].cells][2] == ["0.7 (*)", "+0.1, 2/2"]
    caption = table.caption.split("\n")
    assert caption[0] == "a note"
    assert caption[1].endswith("interval, beside the usual")
    assert [line[:3] for line in caption[2:]] == ["*: ", "(*)"]
    plain = arms(beside={}, used={}).table("scores", "pixels", ["arm"], lines, "the usual")
    assert plain.caption is None


def test_curves_are_over_places_in_a_unit_with_real_images_as_a_level():
    panel = arms().panel(["own"], "pixels", "fid", unit=2, title="FID")
    assert panel.arms == {"own": {0.5: [0.9, 0.9], 1.0: [0.6, 0.8]}}
    assert panel.levels == {REAL_IMAGES: [0.1]}
    assert arms().panel(["own"], "pixels", "fid", unit={"own": 4}, levels={}).levels == {}


def test_states_are_found_by_the_names_of_checkpoints():
    kept = {f"a{seed}-{place}": (seed, place) for seed in (3, 4) for place in (0, 7)}
    found = states_in(kept, {"a": (0, 7)}, (3, 4), lambda arm, seed, place: f"{arm}{seed}-{place}")
    assert found == {"a": {0: [(3, 0), (4, 0)], 7: [(3, 7), (4, 7)]}}
