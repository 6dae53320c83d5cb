from fedgen.scores.frechet.corrected import few_images


def test_every_set_of_fewer_images_than_features_is_named():
    assert few_images("fid", 1280, 1000, [180, 2000, 131]) == (
        "fid is biased upwards, as there are fewer samples than features (1,280): 2 of 3 clients (the smallest has"
        " 131), 1,000 generated. Compare by kid, or at equal numbers of samples"
    )
    assert ": 10 of 10 clients (the smallest has 18), their pool of 180. " in few_images("fid", 1280, 5000, [18] * 10)
    assert ": 90 real, 50 generated. " in few_images("fid", 1280, 50, [90])


def test_as_many_images_as_features_are_enough_and_unknown_numbers_are_left_out():
    assert few_images("fid", 64, 64, [64, 100]) == ""
    assert few_images("fid", 64, None, [None, 64]) == ""
    for said in (few_images("fid", 64, None, [None, 9]), few_images("fid", 64, 64, [64, 9])):
        assert "(64): 1 of 2 clients (the smallest has 9). " in said
