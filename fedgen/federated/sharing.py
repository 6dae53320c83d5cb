"""Shares of a round's clients by process."""

from collections.abc import Sequence

from lightning.pytorch.utilities.exceptions import MisconfigurationException

from fedgen.ranks import Ranks, share_out


class RankShares:
    """The clients of each rank.

    Args:
        ranks: the processes.

    Attributes:
        owners: ranks by client, of clients of whom something is kept between rounds; empty for one process alone.
    """

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self.owners: dict[int, int] = {}

    def share(self, cohort: Sequence[int], sizes: Sequence[int], keeps_clients: bool, most: int) -> list[int | None]:
        """Return the clients of a round that train on this rank, in the cohort's order, balanced by examples."""
        size, rank = self.ranks.size, self.ranks.rank
        if size == 1:
            return [*cohort, *[None] * (most - len(cohort))]
        if keeps_clients:
            if not self.owners:
                dealt = share_out(sizes, size)
                self.owners = {client: owner for owner, clients in enumerate(dealt) for client in clients}
            mine = [client for client in cohort if self.owners[client] == rank]
            longest = min(most, -(-len(sizes) // size))
        else:
            dealt = share_out([sizes[client] for client in cohort], size)
            mine, longest = [cohort[place] for place in dealt[rank]], -(-most // size)
        return [*mine, *[None] * (longest - len(mine))]

    def check_is_here(self, client: int) -> None:
        """Refuse to look into the own model of a client that is kept by another process.

        Raises:
            MisconfigurationException: naming both ranks.
        """
        if (owner := self.owners.get(client, self.ranks.rank)) != self.ranks.rank:
            raise MisconfigurationException(
                f"the model of client {client} is on rank {owner} and not on rank {self.ranks.rank}; what looks into"
                " clients' own models runs in one process: pass Trainer(devices=1, num_nodes=1)"
            )
