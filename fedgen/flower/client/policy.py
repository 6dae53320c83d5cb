"""The policy of a client's owner, whatever a run asks: a file on the node's own disk, which no run names or changes.

Nothing of it comes from the recipe, the run's config or a message. It binds the fedgen that is installed at the node;
an app that is sent there with code of its own is bound by nothing (docs/deployment-policy.md says what to do then).
"""

import hashlib
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

from fedgen.class_paths import nearest
from fedgen.flower.client.worker import IDLE
from fedgen.foreign_text import printable
from fedgen.io.field_types import Between, Text, fault
from fedgen.io.files import read_yaml, write_once
from fedgen.io.regular_files import read_regular
from fedgen.own_code import rank_zero_warn

POLICY = "policy-path"  # of a node's config
VARIABLE = "FEDGEN_POLICY"  # of its environment, where its config names none
DATA, CONFIG, STATE, NAME = "data-path", "data-config", "state-path", "name"  # of a node's config
PARTITION, PARTITIONS = "partition-id", "num-partitions"  # likewise; Flower gives them to simulated nodes
NODE_KEYS = (DATA, CONFIG, STATE, NAME, PARTITION, PARTITIONS, POLICY, IDLE)  # all of a node's config
Positive = Annotated[float, Between(0)]
ALL: Literal["all"] = "all"
Statistic = Literal["statistics", "sketch", "kid", "sums", "fid", "private-sums", "loss"]


class RefusedError(ValueError):
    """A client is asked for what its owner's policy or the run's config does not allow."""


@dataclass(frozen=True)
class Policy:
    """The policy of a node; by default everything is allowed but questions without end, as without a file."""

    runs: list[str] | Literal["all"] = ALL  # that it takes part in, by the last part of `output`
    recipe: Annotated[str, Text(64, 64)] = ""  # SHA-256 of the deployed recipe's file, in hexadecimal; by default any
    masking: bool = False  # whether nothing but its name and counts leaves without secure aggregation
    least_clients: int = 0  # of the federation, for a turn; of a masked sum, for whatever is in it
    statistics: list[Statistic] | Literal["all"] = ALL  # that it answers
    embeddings: list[str] | Literal["all"] = ALL  # in which, by name
    # different ones that a run may ask about each statistic: a score of generated images, an answer to a loss; fewer if
    # its recipe has fewer
    most_questions: int = 1000
    most_epsilon: Positive = math.inf  # of all releases with noise together, over all runs; without noise then none
    most_norm: Positive = math.inf  # of an update, all weights' changes as one vector; a larger one fails the turn
    most_bytes: Positive = math.inf  # of an answer

    @classmethod
    def of_node(cls, config: Mapping[str, Any]) -> "Policy":
        """That of a node's own config ("policy-path"), or of its environment (FEDGEN_POLICY)."""
        try:
            return cls.found(config)
        except (OSError, ValueError) as error:
            rank_zero_warn(f"this node's policy cannot be read, so it takes part in nothing: {error}")
            raise RefusedError("this node's policy cannot be read; its owner's log says why") from error

    @classmethod
    def found(cls, config: Mapping[str, Any]) -> "Policy":
        """That of a node's own config; raises for its owner, an unknown key too, which may be meant for a policy."""
        for key in config:
            if key not in NODE_KEYS:
                known = f"{nearest(key, NODE_KEYS)}; there are {', '.join(NODE_KEYS)}"
                raise ValueError(f"this node's config has no key {printable(key)!r}{known}")
        if wrong := [name for name in os.environ if name != VARIABLE and name.upper().startswith(VARIABLE[:-1])]:
            raise ValueError(f"the environment has {printable(wrong[0])}; did you mean {VARIABLE}?")
        path = config[POLICY] if POLICY in config else os.environ.get(VARIABLE)
        if path is None:
            return cls()
        if not str(path).strip():
            raise ValueError(f"{POLICY if POLICY in config else VARIABLE} names no file; give a path, or leave it out")
        return cls.read(Path(str(path)))

    @classmethod
    def read(cls, path: Path) -> "Policy":
        """That of a file in YAML."""
        found = read_yaml(path)
        if not found or not isinstance(found, dict):
            raise ValueError(f"{path} is no policy: it has no keys")
        names = [one.name for one in fields(cls)]
        hints = get_type_hints(cls, include_extras=True)
        for key, value in found.items():
            if key not in names:
                known = f"{nearest(str(key), names)}; there are {', '.join(names)}"
                raise ValueError(f"{path}: there is no key {printable(str(key))!r}{known}")
            if value is None:
                remedy = "[] to allow none" if getattr(cls, key) == ALL else "a value"
                raise ValueError(f"{path}: {key} is empty; give {remedy}, or leave the key out")
            if wrong := fault(value, hints[key]):
                raise ValueError(f"{path}: {key} {wrong}")
        return cls(**found)

    def check_run(self, name: str, recipe: Path, masked: bool) -> None:
        """Refuses a run as such, before its client says who it is."""
        _check_listed("runs", self.runs, name, f"the run {name!r}")
        own = hashlib.sha256(recipe.read_bytes()).hexdigest()
        if self.recipe and self.recipe.lower() != own:
            refuse("recipe", f"the recipe of SHA-256 {own}", self.recipe)
        if self.masking and not masked:
            refuse("masking", "a run without secure aggregation", "true")

    def check_clients(self, number: int) -> None:
        """Refuses what is shared by too few clients."""
        if number < self.least_clients:
            refuse("least_clients", f"{number} clients", str(self.least_clients))

    def check_asked(self, ask: str, embedding: str) -> None:
        """Refuses a statistic, or its embedding."""
        _check_listed("statistics", self.statistics, ask, repr(ask))
        _check_listed("embeddings", self.embeddings, embedding, repr(embedding))
        if math.isfinite(self.most_epsilon) and ask != "private-sums":
            refuse("most_epsilon", f"{ask!r}, which has no noise", f"{self.most_epsilon:g}")

    def check_questions(self, before: int, what: str, declared: float) -> None:
        """Refuses one more question about a statistic, after `before` others of the `declared` of the run's recipe."""
        if before >= self.most_questions:
            refuse("most_questions", f"one more about {what} than {before}", f"{self.most_questions}")
        if before >= declared:
            raise RefusedError(
                f"the run has asked {before} different questions about {what}, and its recipe has {declared:g} at most,"
                " those of rounds that are done again included: begin a run of another name (`output`)"
            )

    @property
    def limits_bytes(self) -> bool:
        """Whether an answer's size matters."""
        return math.isfinite(self.most_bytes)

    def check_answer(self, size: float, norm: float = 0.0) -> None:
        """Refuses to send an answer of so many bytes, or an update of this norm."""
        if size > self.most_bytes:
            refuse("most_bytes", f"an answer of {size:.0f} bytes", f"{self.most_bytes:g}")
        if not norm <= self.most_norm:
            refuse("most_norm", f"an update of norm {norm:g}", f"{self.most_norm:g}")

    def spend(self, epsilon: float, release: str, ledger: Path) -> None:
        """Counts a release before it is made, whose epsilon stays what it was first."""
        before, own = {path: _spent(path) for path in ledger.glob("*.json")}, ledger / f"{release}.json"
        if (first := before.get(own, epsilon)) != epsilon:
            asked = f"this run promised sums with noise of epsilon {first:g}, and asks for {epsilon:g} now"
            raise RefusedError(f"{asked}: begin a run of another name (`output`)")
        write_once(own, repr(float(epsilon)).encode())
        if (spent := sum(map(_spent, ledger.glob("*.json")))) > self.most_epsilon:  # of runs that ask at once, too
            if own not in before:
                own.unlink()
            refuse("most_epsilon", f"epsilon {spent:g} over all releases", f"{self.most_epsilon:g}")


def _spent(path: Path) -> float:
    """The epsilon of a release before; raises RefusedError for a file that does not say it."""
    try:
        found = float(read_regular(path))
    except ValueError:
        found = math.nan
    if not 0 <= found < math.inf:
        raise RefusedError(
            f"what this client keeps of an earlier release, {path.name}, is damaged: nobody knows its epsilon"
        )
    return found


def _check_listed(key: str, allowed: Sequence[str] | None, name: str, asked: str) -> None:
    """Refuses what a list does not name; None, as of an empty key, names nothing."""
    if allowed != ALL and name not in (allowed or ()):
        refuse(key, asked, ", ".join(allowed or ()) or "nothing")


def refuse(key: str, asked: str, allowed: str) -> None:
    """Says at the node, and by a RefusedError at the server, what is refused."""
    said = f"this node's policy allows {key}={allowed}, and the run asks for {asked}"
    rank_zero_warn(f"refused: {said}")
    raise RefusedError(said)
