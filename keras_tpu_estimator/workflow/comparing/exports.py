"""The signatures of exported models."""

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tensorflow.core.protobuf.meta_graph_pb2 import TensorInfo


def signatures_of(folder: str) -> dict[str, str]:
    """Returns the dtype and shape of each input and output of a SavedModel."""
    from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

    with open(os.path.join(folder, "saved_model.pb"), "rb") as file:
        model = SavedModel.FromString(file.read())
    signatures: dict[str, str] = {}
    for graph in model.meta_graphs:
        tags = ", ".join(sorted(graph.meta_info_def.tags))
        for key, signature in graph.signature_def.items():
            name = f"{key} ({tags})"
            signatures[name] = signature.method_name
            for kind in ("input", "output"):
                infos = getattr(signature, f"{kind}s")
                for tensor, info in infos.items():
                    signatures[f"{kind} {tensor} of {name}"] = " ".join(_form(info))
    return signatures


def _form(info: "TensorInfo") -> Iterator[str]:
    from tensorflow.core.framework import types_pb2

    yield types_pb2.DataType.Name(info.dtype)
    shape = info.tensor_shape
    if not shape.unknown_rank:
        yield str([None if axis.size < 0 else axis.size for axis in shape.dim])
