"""The predictor of `tf.contrib.predictor`: an export in a session."""

from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow.compat.v1 as tf

_SERVING = "serving_default"


class SavedModelPredictor:
    """Calls a signature of an exported model.

    Args:
        export_dir: The folder of the export.
        signature_def_key: The name of the signature.
        tags: The tags of the metagraph.
        graph: The graph into which the model is loaded.
        config: A `ConfigProto` for the session.

    Attributes:
        graph: The graph.
        session: The session.
        feed_tensors: The inputs by name.
        fetch_tensors: The outputs by name.
    """

    def __init__(
        self,
        export_dir: str,
        signature_def_key: str,
        tags: Iterable[str],
        graph: Any,
        config: Any,
    ):
        self.graph = graph
        self.session = tf.Session(graph=graph, config=config)
        with graph.as_default():
            meta = tf.saved_model.loader.load(self.session, tags, export_dir)
        signatures = meta.signature_def
        if signature_def_key not in signatures:
            raise ValueError(
                f"The export {export_dir!r} must have the signature "
                f"{signature_def_key!r}. Received one with "
                f"{sorted(signatures)}. Give `signature_def_key` one of these."
            )
        signature = signatures[signature_def_key]
        self.feed_tensors = self._tensors(signature.inputs)
        self.fetch_tensors = self._tensors(signature.outputs)

    def _tensors(self, infos: Mapping[str, Any]) -> dict[str, Any]:
        return {
            name: self.graph.get_tensor_by_name(info.name)
            for name, info in infos.items()
        }

    def __call__(self, input_dict: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the outputs by name, as NumPy arrays.

        Args:
            input_dict: Arrays by input name.

        Raises:
            ValueError: A name is not that of an input.
        """
        unknown = sorted({*input_dict} - {*self.feed_tensors})
        if unknown:
            raise ValueError(
                "The inputs must be some of "
                f"{sorted(self.feed_tensors)}. Received: {unknown}."
            )
        fed = {self.feed_tensors[n]: value for n, value in input_dict.items()}
        outputs: dict[str, Any] = self.session.run(self.fetch_tensors, fed)
        return outputs


def from_saved_model(
    export_dir: str,
    signature_def_key: str | None = None,
    signature_def: Any = None,
    input_names: Any = None,
    output_names: Any = None,
    tags: str | None = None,
    graph: Any = None,
    config: Any = None,
) -> SavedModelPredictor:
    """Loads an exported model to call one of its signatures.

    Args:
        export_dir: The folder of the export.
        signature_def_key: The name of the signature. Defaults to that of serving.
        signature_def: Must be `None`. Use the key.
        input_names: Must be `None`. Use the key of a signature.
        output_names: Must be `None`. Use the key of a signature.
        tags: The tags of the metagraph, separated by commas. Defaults to 'serve'.
        graph: The graph into which the model is loaded. Defaults to a new graph.
        config: A `ConfigProto` for the session.

    Returns:
        A function of a dict of arrays by input name.

    Raises:
        ValueError: The signature is missing, or not given by its key.
    """
    if any(
        argument is not None for argument in (signature_def, input_names, output_names)
    ):
        raise ValueError(
            "A signature must be given by `signature_def_key`. Received a "
            "`signature_def`, `input_names` or `output_names`. Leave them out."
        )
    return SavedModelPredictor(
        export_dir,
        signature_def_key or _SERVING,
        (tags or "serve").split(","),
        graph or tf.Graph(),
        config,
    )
