"""The tensors of a module that travel between server and clients, and the server's copy of them."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Any, Literal, get_args

import torch
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from torchmetrics import Metric, MetricCollection

from fedgen.data.optional_attributes import optional
from fedgen.federated.client_state.state_values import same_numbers
from fedgen.federated.lightning.lightning_internals import (
    BUFFERS,
    CHILDREN,
    PARAMETERS,
    REGISTRIES,
    UNSAVED,
    empty_buffers,
)
from fedgen.io.tensor_files import bytes_of
from fedgen.models.optional_hooks import FederatedModule, ModulePart

Rule = Literal["mean", "max", "server", "personal", "advance"]
MODULE_RULES = "federated_rules"  # an attribute of modules or their classes: patterns relative to them, and rules


class Rules:
    """Declared rules by the dotted names of state: the strategy's own first, then those of the module's parts."""

    def __init__(self, given: Mapping[str, Rule], module: nn.Module) -> None:
        check_rules("rules", given)
        self._given = dict(given)
        self._declared = list(_declared(module))
        self._matched: set[str] = set()

    def rule_of(self, names: Iterable[str]) -> Rule | None:
        """The rule of a piece of state with these names (tied tensors have several); None if it is undeclared."""
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
        return bool(self._given or self._declared)

    @property
    def keep_clients(self) -> bool:
        """Whether something is declared personal: each client then trains in one process for good."""
        return any("personal" in rules.values() for rules in (self._given, *(rules for _, rules in self._declared)))

    @property
    def unmatched(self) -> list[str]:
        """The strategy's patterns that no name has matched so far."""
        return [pattern for pattern in self._given if pattern not in self._matched]


def check_rules(where: str, rules: Mapping[str, str]) -> None:
    if not isinstance(rules, Mapping):
        raise ValueError(f"{where}={rules!r}: give a dictionary of patterns and rules, e.g. {{'queue*': 'personal'}}")
    for pattern, rule in rules.items():
        if rule not in get_args(Rule):
            raise ValueError(f"{where}: {pattern!r} has the rule {rule!r}; choose one of {', '.join(get_args(Rule))}")


def with_ancestors(path: str) -> list[str]:
    """A path and those of everything that holds it: a rule for a list is one for what is in it."""
    parts = path.split(".")
    return [".".join(parts[:count]) for count in range(len(parts), 0, -1)]


def _declared(module: nn.Module) -> Iterator[tuple[str, dict[str, Rule]]]:
    """The parts' own rules with their prefixes, the innermost parts first."""
    for prefix, part in sorted(module.named_modules(), key=lambda item: -len(item[0])):
        found: dict[str, Rule] = {}
        for holder in (part, *type(part).__mro__):  # a module's own patterns come first, then its subclass's
            if (own := vars(holder).get(MODULE_RULES)) is not None:
                name = (holder if isinstance(holder, type) else type(part)).__name__
                check_rules(f"{name}.{MODULE_RULES}", own)
                found |= {pattern: rule for pattern, rule in own.items() if pattern not in found}
        if found:
            yield (f"{prefix}." if prefix else ""), found


Kind = tuple[torch.Size, torch.dtype, torch.device, torch.layout]
Home = tuple[dict[str, Any], str]  # the place of a tensor: a module's parameters or buffers, and its key there


class Forms:
    """The places of a module's tensors, and their shapes, types and devices; looks at no values."""

    def __init__(self, module: nn.Module, tensors: Mapping[str, Tensor], closed: tuple[str, ...] = ()) -> None:
        self._module, self._tensors, self._closed = module, dict(tensors), closed
        self._kinds = {name: _kind(tensor) for name, tensor in tensors.items()}
        self._parts = list(module.modules())
        # with the dictionaries themselves: a Sequential makes a new one when a layer is deleted
        places = [(vars(part), kind) for part in self._parts for kind in REGISTRIES]
        self._before = [(home, kind, home[kind], dict(home[kind])) for home, kind in places]
        known = {id(tensor): name for name, tensor in tensors.items()}
        # all tensors that a checkpoint would hold; None for those that averaging leaves alone
        self._places = {place: known.get(id(own[key])) for place, (own, key) in _saved(module).items()}
        self.empty = _saved(module, filled=False)

    @property
    def filled(self) -> dict[str, Tensor]:
        """The tensors in the places of buffers that were None."""
        now = {n: own.get(key) for n, (own, key) in self.empty.items() if not n.startswith(self._closed)}
        return {n: value for n, value in now.items() if value is not None and not isinstance(value, nn.Parameter)}

    @torch.no_grad()
    def adopt(self) -> str | None:
        """Takes the values of tensors that were put in the places of known ones, if all have their forms."""
        now, moved = _saved(self._module), []
        if now.keys() != self._places.keys() and (change := self._lost_or_new(now)):
            return change
        for place, name in self._places.items():
            if name is None:
                continue
            own, key = now[place]
            tensor = own[key]
            if (tensor.shape, tensor.dtype, tensor.device, tensor.layout) != self._kinds[name]:
                return f"{name} has {_difference(_kind(tensor), self._kinds[name])}"
            if tensor is not self._tensors[name]:
                moved.append((own, key, self._tensors[name]))
        for own, key, known in moved:
            known.copy_(own[key])
            own[key] = known
        return None

    def restore(self, server: Mapping[str, Tensor]) -> None:
        """Puts the tensors back in their places and forms; values of those that had lost their form are undefined."""
        for home, kind, own, before in self._before:
            home[kind] = own
            lost = {key: value for key, value in before.items() if _is_lost(value, own.get(key))}
            if lost:
                present = dict(own)
                own.clear()
                own.update({**before, **present, **lost})
        for own, key in self.empty.values():
            own[key] = None
        self._remove(_saved(self._module).keys() - self._places.keys())
        for place, (own, key) in _saved(self._module).items():
            if (name := self._places[place]) is not None:
                own[key] = self._tensors[name]
        for name, tensor in self._tensors.items():
            if _kind(tensor) != self._kinds[name]:
                tensor.grad = None
                tensor.data = torch.empty_like(server[name])

    def _lost_or_new(self, now: Mapping[str, Home]) -> str | None:
        if gone := sorted(self._places.keys() - now.keys()):
            return f"{gone[0]} is gone"
        if new := sorted(now.keys() - self._places.keys() - self.filled.keys()):
            return (
                f"{new[0]} is new, and the server has no such tensor: give it one before training starts; a buffer that"
                " turns fill may be registered as None"
            )
        return None

    def _remove(self, new: set[str]) -> None:
        known = {id(part) for part in self._parts}
        for prefix, part in list(self._module.named_modules()) if new else ():
            before, children = f"{prefix}." if prefix else "", vars(part)[CHILDREN]
            for key, child in list(children.items()):
                if id(child) not in known and any(place.startswith(f"{before}{key}.") for place in new):
                    del children[key]
            for own in (vars(part)[PARAMETERS], vars(part)[BUFFERS]):
                for key in [key for key in own if before + key in new]:
                    del own[key]


def _difference(sent: Kind, had: Kind) -> str:
    pairs = zip(("shape", "dtype", "device", "layout"), (list(sent[0]), *sent[1:]), (list(had[0]), *had[1:]))
    return ", ".join(f"{what} {one} instead of {other}" for what, one, other in pairs if one != other)


def _kind(tensor: Tensor) -> Kind:
    return tensor.shape, tensor.dtype, tensor.device, tensor.layout


def _saved(module: nn.Module, filled: bool = True) -> dict[str, Home]:
    """Return the places of all tensors that a checkpoint of the module would hold; or of those that are None."""
    found = {}
    for prefix, part in module.named_modules():
        held, before = vars(part), f"{prefix}." if prefix else ""
        for own, unsaved in ((held[PARAMETERS], ()), (held[BUFFERS], held[UNSAVED])):
            for key, value in own.items():
                if (value is not None) is filled and key not in unsaved:
                    found[before + key] = own, key
    return found


def _is_lost(before: Any, now: Any) -> bool:
    """Whether a module has lost something that was registered; a replaced child counts if either has tensors."""
    if isinstance(before, nn.Module):
        return before is not now and any(isinstance(part, nn.Module) and _saved(part) for part in (before, now))
    return before is not None and now is None


ACCUMULATING = (Metric, MetricCollection)  # of torchmetrics: such modules accumulate over turns


def all_finite(tensors: Sequence[Tensor]) -> bool:
    """Look for NaN and infinity, in one pass over the memory in the common case."""
    floats = [t for t in tensors if (t.is_floating_point() or t.is_complex()) and t.numel()]
    if not floats:
        return True
    norms, others = [], []
    for tensor in floats:
        is_large = tensor.numel() > 2**16 and tensor.is_contiguous() and tensor.device.type == "cpu"
        if is_large and tensor.dtype in (torch.float32, torch.float64):
            flat = tensor.detach().view(-1)
            norms.append(torch.dot(flat, flat))  # half of a norm's time
        else:
            others.append(tensor)
    norms += torch._foreach_norm(others) if others else ()
    total = torch.stack([norm.float() for norm in norms]).sum()
    # either may overflow where every element is finite: only then look at each
    return math.isfinite(total.item()) or all(bool(torch.isfinite(t).all()) for t in floats)


class Exchange:
    """A module's saved tensors by what federated averaging does with them."""

    def __init__(
        self,
        module: nn.Module,
        trained: Iterable[Tensor],
        personal: Sequence[str],
        rules: Rules | None = None,
        fixed: bool = False,
        moving: Iterable[str] = (),
    ) -> None:
        self.shared: dict[str, Tensor] = {}
        self.quiet: dict[str, Tensor] = {}
        self.counters: dict[str, Tensor] = {}
        self.held: dict[str, Tensor] = {}
        self.personal: dict[str, Tensor] = {}
        self.trained: set[str] = set()
        self.advancing: set[str] = set()  # counters that grow by the interval in each round
        self.declared: set[str] = set()  # names with a declared rule
        self.becomes_personal: set[str] = set()  # frozen ones that are quiet until a turn changes them
        self._tables: set[str] = set()  # of the held ones, those that no turn may change
        self._fixed, self.changed = fixed, list[str]()
        self.found: list[str] = []  # names that turns were found to change, in this fit
        self.server: dict[str, Tensor] = {}
        self.beside = 0
        self.compressed: dict[str, int] = {}
        self._rules = Rules({}, module) if rules is None else rules
        self._trains, self._moving = {id(p) for p in trained}, frozenset(moving)
        parts = [(f"{name}.", part) for name, part in module.named_modules()]
        kinds = {prefix: optional(part, ModulePart, "exchanged") for prefix, part in parts}
        self._apart = (
            *(prefix for prefix, kind in kinds.items() if kind is False),
            *optional(module, FederatedModule, "unexchanged"),
            *(prefix for prefix, part in parts[1:] if isinstance(part, ACCUMULATING)),
        )
        self._own = tuple(prefix for prefix, kind in kinds.items() if kind == "personal")
        named: dict[int, tuple[list[str], Tensor]] = {}  # each tensor once with all its names
        for name, value in module.state_dict(keep_vars=True).items():
            if isinstance(value, Tensor):
                named.setdefault(id(value), ([], value))[0].append(name)
        self.first_names = {other: names[0] for names, _ in named.values() for other in names}
        self._order = {name: place for place, name in enumerate(self.first_names)}
        unmatched = {pattern for pattern in personal if not empty_buffers(module, pattern)}
        for names, tensor in named.values():
            matched = {pattern for pattern in personal if any(fnmatchcase(name, pattern) for name in names)}
            self._place(names, tensor, bool(matched))
            unmatched -= matched
        if unmatched:
            known = ", ".join(list(self.first_names)[:5])
            raise ValueError(
                f"personal pattern(s) {sorted(unmatched)} match no tensor of the model; names: {known}, ..."
            )
        self._forms = Forms(module, self.live, self._own)

    def _place(self, names: Sequence[str], tensor: Tensor, is_personal: bool) -> None:
        name, is_apart = names[0], all(n.startswith(self._apart) for n in names)
        trains = isinstance(tensor, nn.Parameter) and id(tensor) in self._trains
        is_frozen = isinstance(tensor, nn.Parameter) and not trains and not tensor.requires_grad
        rule = None if is_personal else self._rules.rule_of(names)
        if rule is not None:
            home = self._declared_home(name, tensor, rule)
        elif is_apart and not is_personal:
            return
        elif is_personal or all(n.startswith(self._own) for n in names):
            self.becomes_personal |= {name} if is_frozen and not is_apart else set()
            home = self.quiet if name in self.becomes_personal and name not in self._moving else self.personal
        elif not is_floating(tensor):
            home = self.counters
        else:
            is_shared = trains or (self._fixed and not is_frozen) or name in self._moving
            home = self.shared if is_shared else self.quiet
        home[name] = tensor
        if trains and home is self.shared:
            self.trained.add(name)

    def _declared_home(self, name: str, tensor: Tensor, rule: Rule) -> dict[str, Tensor]:
        self.declared.add(name)
        if rule == "mean" and not is_floating(tensor):
            raise ValueError(f"{name} is {tensor.dtype} and has the rule 'mean'; integers take 'max' or 'server'")
        if rule == "advance":
            if is_floating(tensor) or tensor.dtype == torch.bool:
                raise ValueError(f"{name} is {tensor.dtype} and has the rule 'advance', which is for integer counters")
            self.advancing.add(name)
        if rule == "max" and tensor.is_complex():
            raise ValueError(f"{name} is complex and has the rule 'max'; choose another")
        homes = {"mean": self.shared, "server": self.held, "personal": self.personal}
        return homes.get(rule, self.counters)

    @property
    def live(self) -> dict[str, Tensor]:
        """The model's own tensors that a turn may change."""
        return self.shared | self.counters | self.held | self.personal | self.quiet

    @property
    def trainable(self) -> dict[str, Tensor]:
        """The parameters that train and travel: what client algorithms and server optimizers act on."""
        return {name: tensor for name, tensor in self.shared.items() if name in self.trained}

    @property
    def moving(self) -> list[str]:
        """The names that travel, or stay with clients, because turns change them, although they do not train."""
        return [n for n in self.shared if n not in self.trained] + sorted(self.becomes_personal & self.personal.keys())

    @property
    def is_empty(self) -> bool:
        """Whether nothing travels, and nothing would if turns changed it."""
        return not self.shared and self.quiet.keys() <= self.becomes_personal

    @property
    def num_bytes(self) -> int:
        """The bytes that a client sends to the server in a round: the shared tensors, and what goes beside them."""
        return self.beside + self.bytes_sent(self.traveling)

    @property
    def num_bytes_down(self) -> int:
        """The bytes that the server sends to a client in a round: those tensors whole, counters, what is held."""
        return self.beside + bytes_of([*self.traveling.values(), *self.counters.values(), *self.held.values()])

    @property
    def traveling(self) -> dict[str, Tensor]:
        """The shared tensors, and those that the turn that was settled last was found to change."""
        changed = [name for name in self.changed if name in self.quiet and name not in self.becomes_personal]
        return self.shared | {name: self.quiet[name] for name in changed}

    def bytes_sent(self, tensors: Mapping[str, Tensor]) -> int:
        return sum(self.compressed.get(name, bytes_of([tensor])) for name, tensor in tensors.items())

    def state_dict(self) -> dict[str, list[str]]:
        """The names that turns were found to change, which a resumed run need not find again."""
        return {"moving": self.moving}

    def load_state_dict(self, state: Mapping[str, Sequence[str]]) -> None:
        """Restores `state_dict`; names that the model has no more are passed over."""
        self.grow(state["moving"])

    def hold_tables(self) -> None:
        """Holds undeclared counters of several numbers at the server's values: index tables and masks, which stay."""
        self._tables = {n for n, tensor in self.counters.items() if tensor.numel() > 1 and n not in self.declared}
        self.held |= {name: self.counters.pop(name) for name in self._tables}

    def snapshot(self) -> None:
        live = self.live
        if not self.server:
            self.server = {name: torch.empty_like(tensor, requires_grad=False) for name, tensor in live.items()}
        copy_tensors([self.server[name] for name in live], live.values())

    def load_server(self) -> None:
        quiet, self.changed = {name: self.quiet[name] for name in self.changed if name in self.quiet}, []
        live = self.shared | self.counters | self.held | self.personal | quiet
        copy_tensors(live.values(), [self.server[name] for name in live])

    def still_fits(self) -> bool:
        """Whether the model has the tensors that it had, in their forms; some may have been put in others' places."""
        return self._forms.adopt() is None and not (self._forms.empty and self._forms.filled)

    @property
    def of_turn(self) -> dict[str, Tensor]:
        """The tensors of the model that the turn that was settled last left: all but constants and what is held."""
        return self.shared | self.counters | self.personal | {name: self.quiet[name] for name in self.changed}

    def settle(self, iterations: int) -> None:
        """Refuses tensors that a client's turn lost, added, brought into another form or broke."""
        if change := self._forms.adopt():
            raise ValueError(f"{change}, after {iterations} local iterations")
        self.changed = [name for name, tensor in self.quiet.items() if not same_numbers(tensor, self.server[name])]
        if table := next((n for n in self._tables if not torch.equal(self.held[n], self.server[n])), None):
            raise MisconfigurationException(
                f"{table} is an integer tensor, and the turn changed it: the largest over clients would show one"
                f" client's beside masks or noise; declare what becomes of it, e.g. rules={{{table!r}: 'server'}}"
            )
        if self._fixed and self.changed:
            raise MisconfigurationException(
                f"{self.changed[0]} does not train, and the turn changed it: what travels is fixed beforehand here;"
                f" declare what becomes of it, e.g. rules={{{self.changed[0]!r}: 'mean'}}"
            )
        sent = self.shared | self.personal | {name: self.quiet[name] for name in self.changed}
        # a mask may hold infinity: those that turns do not change are not looked at either
        if self._forms.empty:
            sent |= {name: tensor for name, tensor in self._forms.filled.items() if bool(tensor.isnan().any())}
        if not all_finite(list(sent.values())):
            bad = next(name for name, tensor in sent.items() if not bool(torch.isfinite(tensor).all()))
            raise FloatingPointError(f"{bad} is not finite after {iterations} local iterations")

    def grow(self, names: Iterable[str] | None = None) -> list[str]:
        """Lets tensors travel (or stay with clients, if they match a personal pattern) that turns have changed."""
        found = [name for name in (self.changed if names is None else names) if name in self.quiet]
        self.found += found
        for name in found:
            tensor = self.quiet.pop(name)
            (self.personal if name in self.becomes_personal else self.shared)[name] = tensor
        if found:
            self.shared = dict(sorted(self.shared.items(), key=lambda item: self._order[item[0]]))
        return sorted((name for name in found if name in self.shared), key=self._order.__getitem__)

    def restore_forms(self) -> None:
        """Gives the model its tensors back after a failed turn; before `load_server`."""
        self._forms.restore(self.server)
        self.changed = list(self.quiet)  # whichever the turn changed


def is_floating(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


@torch.no_grad()
def copy_tensors(targets: Iterable[Tensor], sources: Iterable[Tensor]) -> None:
    targets, sources = list(targets), list(sources)
    if targets:
        torch._foreach_copy_(targets, sources)


@contextmanager
def naming_difference(model: Mapping[str, Tensor], saved: Mapping[str, Tensor]) -> Iterator[None]:
    """Says what of a checkpoint's state does not fit the model, if loading it in the block fails."""
    try:
        yield
    except RuntimeError as error:
        difference = describe_difference(model, saved)
        raise MisconfigurationException(f"the checkpoint holds another model than this one: {difference}") from error


def describe_difference(model: Mapping[str, Tensor], saved: Mapping[str, Tensor]) -> str:
    """In words, how two state dicts differ in names and shapes, with the first name of each kind."""
    shapes = [
        f"{name} is {list(saved[name].shape)} there and {list(own.shape)} here"
        for name, own in model.items()
        if isinstance(own, Tensor) and not is_lazy(own) and name in saved and own.shape != saved[name].shape
    ]
    missing, extra = [n for n in model if n not in saved], [n for n in saved if n not in model]
    parts = [f"{len(shapes)} tensors of another shape ({shapes[0]})"] if shapes else []
    parts += [f"{len(missing)} tensors missing (first: {missing[0]})"] if missing else []
    parts += [f"{len(extra)} tensors unknown to the model (first: {extra[0]})"] if extra else []
    return "; ".join(parts) or "no difference in names or shapes"


def parameters_of(optimizer: Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
