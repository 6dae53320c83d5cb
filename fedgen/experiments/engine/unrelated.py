"""Embeddings to judge by: none whose network a loss used, or that has seen the images that are scored against."""

from collections.abc import Sequence

from fedgen.embeddings import network_of

SEEN = {"classifier-mnist5k": "mnist5k"}  # network -> data that it was trained on, clients' held-out images among them


def require_unrelated(embedding: str, optimised: Sequence[str], data: str | None = None) -> None:
    """Raises ValueError for an embedding that would not be an independent judge.

    Args:
        embedding: by its name.
        optimised: the embeddings that losses use.
        data: that the scored generators were trained on.
    """
    network = network_of(embedding)
    for used in optimised:
        if network == network_of(used):
            which = "is the one" if embedding == used else f"has the network of {used}, the one"
            raise ValueError(f"embedding={embedding!r} {which} that FID is optimised in; name another to judge by")
    if data is not None and SEEN.get(network) == data:
        raise ValueError(f"embedding={embedding!r} was trained on images of {data}; name another to judge by")
