"""What a model that is sharded over several cores cannot do."""

from keras_tpu_estimator.front_ends.keras.traced_model_fn import TracedModelFn
from keras_tpu_estimator.ground.tracing.capture import Captured


def check_can_be_sharded(call: TracedModelFn, forward: Captured) -> None:
    """Checks what `model_fn` does, where several cores are a replica.

    Args:
        call: The call of `model_fn`.
        forward: Its trace.

    Raises:
        NotImplementedError: It calls back into Python.
    """
    if call.example.cores.model_axes and forward.callbacks:
        raise NotImplementedError(
            "With several cores per replica model_fn should not call back "
            "into Python: XLA, which spreads its work over them, cannot place "
            f"that. Received: {forward.callbacks}. Compute it in host_call or "
            "a hook, or leave num_cores_per_replica out."
        )
