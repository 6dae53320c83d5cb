"""Rules for state that a client's turn changes, by name: declared by the strategy or by modules."""

from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Literal, get_args

from torch import nn

Rule = Literal["mean", "max", "server", "personal", "advance"]
MODULE_RULES = "federated_rules"  # an attribute of modules or their classes: patterns relative to them, and rules


class Rules:
    """Declared rules by the dotted names of state: the strategy's own first, then those of the module's parts.

    - `mean`: the weighted mean over the round's clients (floating-point tensors and numbers).
    - `max`: the largest over the round's clients (counters and flags).
    - `server`: every turn starts from the server's value, and what turns make of it is dropped.
    - `personal`: every client keeps its own, which never leaves it.
    - `advance`: a counter that grows by the communication interval in each round, whatever clients count.

    A module of one's own may declare rules for what lies in it: `federated_rules = {"queue*": "personal"}`; patterns
    are relative to it, and the one of the innermost part decides.

    Args:
        given: the strategy's: shell patterns of full names.
        module: the model, whose parts may declare more.

    Raises:
        ValueError: for a rule of another name.
    """

    def __init__(self, given: Mapping[str, Rule], module: nn.Module) -> None:
        check_rules("rules", given)
        self._given = dict(given)
        self._declared = list(_declared(module))
        self._matched: set[str] = set()

    def rule_of(self, names: Iterable[str]) -> Rule | None:
        """The rule of a piece of state with these names (tied tensors have several); None if nobody declared one."""
        for pattern, rule in self._given.items():
            if any(fnmatchcase(name, pattern) for name in names):
                self._matched.add(pattern)
                return rule
        for prefix, rules in self._declared:
            inner = [name.removeprefix(prefix) for name in names if name.startswith(prefix)]
            for pattern, rule in rules.items():
                if any(fnmatchcase(name, pattern) for name in inner):
                    return rule
        return None

    def __bool__(self) -> bool:
        """Whether there is any."""
        return bool(self._given or self._declared)

    @property
    def keep_clients(self) -> bool:
        """Whether something is declared personal: each client then trains in one process for good."""
        return "personal" in self._given.values() or any("personal" in rules.values() for _, rules in self._declared)

    @property
    def unmatched(self) -> list[str]:
        """The strategy's patterns that no name has matched so far."""
        return [pattern for pattern in self._given if pattern not in self._matched]


def check_rules(where: str, rules: Mapping[str, str]) -> None:
    """Refuses rules of other names.

    Raises:
        ValueError: naming the pattern and the rules that there are.
    """
    if not isinstance(rules, Mapping):
        raise ValueError(f"{where}={rules!r}: give a dictionary of patterns and rules, e.g. {{'queue*': 'personal'}}")
    for pattern, rule in rules.items():
        if rule not in get_args(Rule):
            raise ValueError(f"{where}: {pattern!r} has the rule {rule!r}; choose one of {', '.join(get_args(Rule))}")


def with_ancestors(path: str) -> list[str]:
    """A path and those of everything that holds it: a rule for a list is one for what is in it."""
    parts = path.split(".")
    return [".".join(parts[: count + 1]) for count in range(len(parts))][::-1]


def _declared(module: nn.Module) -> Iterator[tuple[str, Mapping[str, Rule]]]:
    """The parts' own rules with their prefixes, the innermost parts first."""
    for prefix, part in sorted(module.named_modules(), key=lambda item: -len(item[0])):
        found: dict[str, Rule] = {}
        for holder in (part, *type(part).__mro__):  # a module's own patterns come first, then its subclass's
            if (own := vars(holder).get(MODULE_RULES)) is None:
                continue
            name = (holder if isinstance(holder, type) else type(part)).__name__
            check_rules(f"{name}.{MODULE_RULES}", own)
            found = {**found, **{pattern: rule for pattern, rule in own.items() if pattern not in found}}
        if found:
            yield (f"{prefix}." if prefix else ""), found
