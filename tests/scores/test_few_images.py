from fedgen.scores.frechet.corrected import few_images


def test_every_set_of_fewer_images_than_features_is_named():
    assert few_images("fid", 1280, 1000, [180, 2000, 131]) == (
        "fid is biased upwards: few samples for 1,280 features (2 of 3 clients, from 131, 1,000 generated). Compare by"
        " kid, or at equal numbers of them"
    )
    assert "(10 of 10 clients, from 18, their pool of 180)." in few_images("fid", 1280, 5000, [18] * 10)
    assert "(90 real, 50 generated)" in few_images("fid", 1280, 50, [90])


def test_as_many_images_as_features_are_enough_and_unknown_numbers_are_left_out():
    assert few_images("fid", 64, 64, [64, 100]) == ""
    assert few_images("fid", 64, None, [None, 64]) == ""
    assert "(1 of 2 clients, from 9)" in few_images("fid", 64, None, [None, 9]) + few_images("fid", 64, 64, [64, 9])
