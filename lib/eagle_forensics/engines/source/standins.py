"""Stand-ins for the objects that an engine's deciding functions touch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


class Anything:
    """Absorbs attributes, calls, items and truth tests; what is set on it is kept."""

    def __init__(self, **known: Any) -> None:
        vars(self).update(known)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = Anything()
        vars(self)[name] = made
        return made

    def __call__(self, *args: Any, **kwargs: Any) -> Anything:
        return Anything()

    def __getitem__(self, key: Any) -> Anything:
        return Anything()

    def __bool__(self) -> bool:
        return True


class Arguments:
    """Server arguments: what nobody set is None."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        vars(self).update(values)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


class Log:
    """Collects what the code would print, formatted."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def __getattr__(self, level: str) -> Callable[..., None]:
        def write(message: str, *args: Any, **kwargs: Any) -> None:
            self.lines.append(message % args if args else message)
        return write


class Flags:
    """Environment switches: `envs.NAME.get()`; those not named answer `otherwise`."""

    def __init__(self, values: Mapping[str, Any], otherwise: Any = False) -> None:
        self.values, self.otherwise = dict(values), otherwise

    def __getattr__(self, name: str) -> Any:
        value = self.values.get(name, self.otherwise)
        return Anything(get=lambda: value)


def target(layers: int) -> Anything:
    """A model of `layers` decoder layers, as a layer setter sees it."""
    config = Anything(num_hidden_layers=layers, num_nextn_predict_layers=0)
    config.text_config = config
    inner = Anything(config=config, layers=[Anything() for _ in range(layers)], start_layer=0, end_layer=layers)
    return Anything(config=config, model=inner, language_model=Anything(config=config, model=inner, layers=inner.layers),
                    pp_group=Anything(is_last_rank=True, world_size=1))
