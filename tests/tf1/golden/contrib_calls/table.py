"""All calls, by the name of the function below `tf.contrib`."""

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
# Functions that calls with other names cover.
ALIASES = {
    prefix + name: prefix + other
    for prefix, module in _AREAS
    for name, other in getattr(module, "ALIASES", {}).items()
}
# Slow calls.
LARGE = {
    "losses.cluster_loss",
    "rnn.Conv3DLSTMCell",
    "rnn.LayerNormBasicLSTMCell",
    "rnn.stack_bidirectional_dynamic_rnn",
    "slim.nets.resnet_v1.resnet_v1",
    *(f"slim.nets.{name}" for name in nets.LARGE),
}
