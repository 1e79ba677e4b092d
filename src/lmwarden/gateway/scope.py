"""Which models a key is good for.

A key without a scope, and a request without a key (where none is required), may use every model. A model outside of a
key's scope does not exist for it: the answer is the very one for a name that nobody serves, the listing leaves it out,
and no message names it, so that a key cannot even find out what else is here. Aliases go with their model.
"""

from __future__ import annotations

from lmwarden.gateway.models import ModelNames
from lmwarden.gateway.serving import ModelService
from lmwarden.types import KeyIdentity


def may_use(key: KeyIdentity | None, model: str) -> bool:
    """Whether this key may use the served model of this name."""
    return key is None or key.models is None or model in key.models


def shown(key: KeyIdentity | None, names: ModelNames[ModelService]) -> str:
    """The names that this key may ask for, for an error message."""
    if key is None or key.models is None:
        return names.shown()
    usable = {name: service for name, service in names.exact.items() if service.served.name in key.models}
    return ModelNames(usable, {}).shown() or "none to this key"
