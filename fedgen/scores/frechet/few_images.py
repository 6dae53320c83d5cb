"""Remarks on a Fréchet distance between fewer images than features."""

from collections.abc import Sequence


def few_images(name: str, dim: int, generated: float | None, clients: Sequence[float | None]) -> str:
    """A line that says which sets have fewer images than features; "" if none has.

    The covariance of n < D features has no full rank, and a Fréchet distance from few images is too large, by an amount
    that shrinks with n: values compare at equal numbers of images only.

    Args:
        name: of the score, "fid".
        dim: D, the number of features.
        generated: number of generated images; None where nobody says.
        clients: likewise of each client's real images.
    """
    known = [count for count in clients if count is not None]
    few = [count for count in known if count < dim]
    parts = []
    if few and len(known) == 1:
        parts.append(f"{few[0]:,.12g} real")
    elif few:
        parts.append(f"{len(few):,} of {len(clients):,} clients, from {min(few):,.12g}")
    if few and 1 < len(known) == len(clients) and sum(known) < dim:
        parts.append(f"their pool of {sum(known):,.12g}")
    if generated is not None and generated < dim:
        parts.append(f"{generated:,.12g} generated")
    if not parts:
        return ""
    return (
        f"{name} of fewer images than the {dim:,} features ({', '.join(parts)}) is too large: compare it at equal"
        " numbers of images only"
    )
