"""The outputs of the signatures of an exported model."""

import sys
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np

from keras_tpu_estimator.api.model_fn.outside_compilation import (
    HostTensor,
    is_host_tensor,
)
from keras_tpu_estimator.base.common.shown import shown
from keras_tpu_estimator.base.common.types import PyTree

DEFAULT_SIGNATURE = "serving_default"


class ExportOutput:
    """The outputs of one signature, by name.

    The base class of the values of a spec's `export_outputs`.

    Args:
        outputs: Tensors by output name.
        method: The TensorFlow Serving method: 'predict', 'classify' or
            'regress', or 'train' or 'eval' for the values of a step.

    Attributes:
        tensors: The tensors by output name.
        method: The TensorFlow Serving method.
    """

    def __init__(self, outputs: Mapping[str, Any], method: str):
        self.tensors = dict(outputs)
        self.method = method


class PredictOutput(ExportOutput):
    """Outputs of any kind: the most general signature.

    Args:
        outputs: Tensor, which is named 'output', or a dict of tensors. Keys
            that are tuples of strings are joined with '/'.

    Raises:
        ValueError: It is not a tensor or such a dict.

    Example:

    >>> import numpy as np
    >>> import keras_tpu_estimator as kte
    >>> output = kte.export.PredictOutput({"y": np.zeros((2, 1))})
    >>> list(output.tensors)
    ['y']
    """

    def __init__(self, outputs: Any):
        if not isinstance(outputs, Mapping):
            outputs = {"output": outputs}
        super().__init__(
            {
                _output_name(key): _tensor("PredictOutput", key, value)
                for key, value in outputs.items()
            },
            "predict",
        )

    @property
    def outputs(self) -> dict[str, Any]:
        """The tensors by output name."""
        return self.tensors


class ClassificationOutput(ExportOutput):
    """Outputs of a classification: scores, names of classes, or both.

    Args:
        scores: Tensor of floats, of shape `[batch, classes]`. Defaults to
            `None`.
        classes: Tensor of strings, of shape `[batch, classes]`, as
            `outside_compilation` returns. Defaults to `None`.

    Raises:
        ValueError: Both are `None`, or one has a wrong type.

    Example:

    >>> import numpy as np
    >>> import keras_tpu_estimator as kte
    >>> output = kte.export.ClassificationOutput(np.zeros((2, 10), "float32"))
    >>> output.method
    'classify'
    """

    def __init__(self, scores: Any = None, classes: Any = None):
        outputs = {"scores": scores, "classes": classes}
        tensors = {k: v for k, v in outputs.items() if v is not None}
        if not tensors:
            raise ValueError(
                "ClassificationOutput must have `scores` or `classes`. "
                "Received None for both. Pass scores=softmax(logits)."
            )
        for name, value in tensors.items():
            tensors[name] = _tensor("ClassificationOutput", name, value)
        if scores is not None and not _is_floating(tensors["scores"]):
            raise ValueError(
                "The `scores` of ClassificationOutput must be floats. "
                f"Received: {tensors['scores'].dtype}. Cast them with "
                "keras.ops.cast(scores, 'float32')."
            )
        if classes is not None and tensors["classes"].dtype != "string":
            raise ValueError(
                "The `classes` of ClassificationOutput must be strings. "
                f"Received: {tensors['classes'].dtype}. Turn ids into names "
                "with keras_tpu_estimator.outside_compilation."
            )
        super().__init__(tensors, "classify")

    @property
    def scores(self) -> Any:
        """The scores, or `None`."""
        return self.tensors.get("scores")

    @property
    def classes(self) -> Any:
        """The names of the classes, or `None`."""
        return self.tensors.get("classes")


class RegressionOutput(ExportOutput):
    """Outputs of a regression.

    Args:
        value: Tensor of floats, with the batch as the first dimension.

    Raises:
        ValueError: It is not a tensor of floats.

    Example:

    >>> import numpy as np
    >>> import keras_tpu_estimator as kte
    >>> output = kte.export.RegressionOutput(np.zeros((2, 1), "float32"))
    >>> list(output.tensors)
    ['outputs']
    """

    def __init__(self, value: Any):
        value = _tensor("RegressionOutput", "value", value)
        if not _is_floating(value):
            raise ValueError(
                "The `value` of RegressionOutput must be floats. Received: "
                f"{value.dtype}. Cast it with keras.ops.cast(value, "
                "'float32')."
            )
        super().__init__({"outputs": value}, "regress")

    @property
    def value(self) -> Any:
        """The predicted value."""
        return self.tensors["outputs"]


def signature_outputs(
    export_outputs: Mapping[str, Any] | None, predictions: PyTree
) -> dict[str, ExportOutput]:
    """Returns the outputs of all signatures, including the default one."""
    if export_outputs is None:
        return {DEFAULT_SIGNATURE: PredictOutput(predictions)}
    outputs = dict(export_outputs)
    if len(outputs) == 1:
        outputs.setdefault(DEFAULT_SIGNATURE, *outputs.values())
    return outputs


def check_export_outputs(export_outputs: Any, are_used: bool) -> None:
    """Checks a spec's export outputs, whose content counts only in PREDICT; if there
    are several, one must be the default.
    """
    if not isinstance(export_outputs, Mapping):
        raise TypeError(
            "`export_outputs` must be a dict from signature names to export "
            f"outputs. Received: {shown(export_outputs)}"
        )
    if not are_used:
        return
    for name, output in export_outputs.items():
        if not isinstance(output, ExportOutput):
            raise TypeError(
                f"`export_outputs[{name!r}]` must be a PredictOutput, a "
                "ClassificationOutput or a RegressionOutput. Received: "
                f"{shown(output)}. Wrap it: export.PredictOutput(tensors)."
            )
    if len(export_outputs) > 1 and DEFAULT_SIGNATURE not in export_outputs:
        raise ValueError(
            f"One of several `export_outputs` must be {DEFAULT_SIGNATURE!r}. "
            f"Received: {sorted(export_outputs)}. Add the signature of "
            "requests that name none."
        )


def _output_name(key: Any) -> str:
    parts = key if isinstance(key, tuple) else (key,)
    if not parts or not all(isinstance(part, str) for part in parts):
        raise ValueError(
            "The keys of PredictOutput must be strings, or tuples of "
            f"strings. Received: {shown(key)}"
        )
    return "/".join(parts)


def _tensor(kind: str, name: Any, value: Any) -> Any:
    if isinstance(value, keras.Variable):
        return value.value
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is not None and not tensorflow.executing_eagerly():
        # The model_fn builds a TensorFlow graph.
        if tensorflow.is_tensor(value):
            return tensorflow.convert_to_tensor(value)
    arrays = jax.Array | np.ndarray | np.generic
    if not isinstance(value, arrays | keras.KerasTensor | HostTensor):
        raise ValueError(
            f"{name!r} in {kind} must be a tensor. Received: {shown(value)}. "
            "Convert it with keras.ops.convert_to_tensor, or flatten the "
            "pytree."
        )
    return value


def _is_floating(tensor: Any) -> bool:
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is not None and tensorflow.is_tensor(tensor):
        return bool(tensor.dtype.is_floating)
    if is_host_tensor(tensor):
        return "float" in tensor.dtype
    return jnp.issubdtype(tensor.dtype, jnp.floating)
