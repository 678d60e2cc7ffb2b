"""All calls, by the names of what they call below `tf.contrib`."""

from contrib_calls import (
    data,
    framework,
    layers,
    losses,
    metrics,
    nets,
    sequences,
    training,
    utilities,
)

_AREAS = (
    ("framework.", framework),
    ("layers.", layers),
    ("losses.", losses),
    ("metrics.", metrics),
    ("", sequences),
    ("slim.", data),
    ("slim.nets.", nets),
    ("", training),
    ("", utilities),
)
CALLS = {
    prefix + name: call
    for prefix, module in _AREAS
    for name, call in module.CALLS.items()
}
# What is called by the call of another name.
ALIASES = {
    prefix + name: prefix + other
    for prefix, module in _AREAS
    for name, other in getattr(module, "ALIASES", {}).items()
}
# What takes long.
LARGE = {f"slim.nets.{name}" for name in nets.LARGE}
