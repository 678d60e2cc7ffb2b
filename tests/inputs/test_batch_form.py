import numpy as np

from keras_tpu_estimator.engine.inputs.input_shapes import ElementSpec, mismatch_error
from keras_tpu_estimator.engine.inputs.stacking import Stack
from keras_tpu_estimator.engine.inputs.unbatched import Unbatched


def form(features, labels=None):
    return ElementSpec.from_stack(Stack(features, labels))


def ids(steps=2, size=3, length=5, dtype="int32"):
    return np.zeros((steps, size, length), dtype)


def test_digest_ignores_batch_sizes_and_steps():
    one, other = form({"x": ids()}), form({"x": ids(4, 7)})
    assert one == other and one.digest == other.digest
    # Devices use 32 bits for both dtypes.
    assert form({"x": ids(dtype="int64")}) == one


def test_digest_depends_on_everything_else():
    x = ids()
    forms = [
        form({"x": x}),
        form({"x": ids(length=4)}),
        form({"x": ids(dtype="float32")}),
        form({"y": x}),
        form({"x": x}, x),
        form({"x": Unbatched(x)}),
        form((x,)),
        form([x]),
    ]
    assert len({each.digest for each in forms}) == len(forms)


def test_differences_are_named():
    facts = [
        form({"x": ids(), "y": ids()}).facts,
        None,
        form({"x": ids(length=3, dtype="uint8")}, ids()).facts,
    ]
    message = str(mismatch_error(facts))
    for told in (
        "For features['x'], host 0 has int32 of shape (batch, 5); host 2 has "
        "uint8 of shape (batch, 3). ",
        "For features['y'], host 0 has int32 of shape (batch, 5); host 2 has nothing. ",
        "For labels, host 0 has nothing; host 2 has int32 of shape (batch, 5)",
        "padding tensors to one shape",
    ):
        assert told in message, message
    assert "host 1" not in message and "PyTreeDef" not in message


def test_structures_are_named_if_names_are_equal():
    facts = [form((ids(),)).facts, form([ids()]).facts]
    assert "For the structure of features and labels, host 0 has PyTreeDef" in str(
        mismatch_error(facts)
    )
