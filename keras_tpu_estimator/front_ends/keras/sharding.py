"""A check of models that are sharded over several devices."""

from keras_tpu_estimator.base.tracing.capture import Captured
from keras_tpu_estimator.front_ends.keras.traced_model_fn import TracedModelFn


def check_can_be_sharded(call: TracedModelFn, forward: Captured) -> None:
    """Checks that a model with several devices for each replica has no
    callbacks.
    """
    if call.example.cores.model_axes and forward.callbacks:
        raise NotImplementedError(
            "With several cores per replica model_fn must not call back into "
            "Python, because XLA cannot place that call. Received: "
            f"{forward.callbacks}. Compute it in host_call or a hook, or "
            "leave num_cores_per_replica out."
        )
