"""What may judge generators that were trained on scores."""

import pytest

from fedgen.experiments.engine.scored_arms import require_unrelated


@pytest.mark.parametrize(
    ("embedding", "data", "message"),
    [
        ("pixels", None, "embedding='pixels' is the one that FID is optimised in; name another"),
        ("efficientnet-lite0", None, "has the network of efficientnet-lite0-32, the one that FID is optimised in"),
        ("classifier-mnist5k-seed1", "mnist5k", "was trained on images of mnist5k; name another to judge by"),
    ],
)
def test_what_a_loss_used_at_any_size_and_what_has_seen_the_images_is_refused(embedding, data, message):
    with pytest.raises(ValueError, match=message):
        require_unrelated(embedding, ["pixels", "efficientnet-lite0-32"], data)


def test_other_networks_may_judge():
    require_unrelated("classifier-mnist5k", ["pixels", "efficientnet-lite0-32"], "digits")
    require_unrelated("efficientnet-lite0-32", ["pixels"], "mnist5k")
