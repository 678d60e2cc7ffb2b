"""Ported inputs that read a batch: they return a dataset, whose batches are equal."""

import pathlib
import textwrap

import numpy as np
import pytest

from keras_tpu_estimator.tf1_tools.port.command import port


def ported(folder: pathlib.Path, source: str) -> str:
    path = folder / "program.py"
    path.write_text("import tensorflow as tf\n\n\n" + textwrap.dedent(source))
    code = port(path).files[pathlib.Path("program.py")].code
    return code.removeprefix("import tensorflow.compat.v1 as tf\n").lstrip("\n")


# Inputs before and after.
INPUTS = {
    "a returned batch": (
        """
        def input_fn(params):
            return tf.data.Dataset.range(8).make_one_shot_iterator().get_next()
        """,
        """
        def input_fn(params):
            return tf.data.Dataset.range(8)
        """,
    ),
    "a function that makes the iterator": (
        """
        def input_fn(params):
            dataset = tf.data.Dataset.range(8)
            return tf.data.make_one_shot_iterator(dataset).get_next()
        """,
        """
        def input_fn(params):
            dataset = tf.data.Dataset.range(8)
            return dataset
        """,
    ),
    "statements after it": (
        """
        def input_fn(params):
            dataset = tf.data.Dataset.zip((data(), data())).batch(2)
            # Both are images.
            x, y = dataset.make_one_shot_iterator().get_next()

            # Scaled.
            x = tf.cast(x, tf.float32) / 255.0
            return {"x": x}, y
        """,
        """
        def input_fn(params):
            dataset = tf.data.Dataset.zip((data(), data())).batch(2)

            # Both are images.
            def prepare(x, y):
                # Scaled.
                x = tf.cast(x, tf.float32) / 255.0
                return {"x": x}, y

            return dataset.map(prepare)
        """,
    ),
    "a named iterator": (
        """
        def input_fn(params):
            dataset = data()
            iterator = dataset.make_initializable_iterator()
            tf.add_to_collection(
                tf.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
            features = iterator.get_next()
            return features["x"], features["y"]
        """,
        """
        def input_fn(params):
            dataset = data()

            def prepare(features):
                return features["x"], features["y"]

            return dataset.map(prepare)
        """,
    ),
    "callers of inputs": (
        """
        class Reader(object):
            def __call__(self, params):
                x, y = data().make_one_shot_iterator().get_next()
                return {"x": x}, y


        def batches(params):
            return Reader()(params)


        def input_fn(params):
            features, _ = batches(params)
            return features["x"]
        """,
        """
        class Reader(object):
            def __call__(self, params):
                def prepare(x, y):
                    return {"x": x}, y

                return data().map(prepare)


        def batches(params):
            return Reader()(params)


        def input_fn(params):
            def prepare(features, _):
                return features["x"]

            return batches(params).map(prepare)
        """,
    ),
}


@pytest.mark.parametrize(("before", "after"), INPUTS.values(), ids=INPUTS)
def test_inputs_return_datasets(tmp_path, before: str, after: str) -> None:
    """Without a graph, `get_next()` would be the batch of every step."""
    assert ported(tmp_path, before) == textwrap.dedent(after).lstrip("\n")


# Inputs whose rest does not certainly mean the same in a function of a batch.
BY_HAND = {
    "a whole batch": "batch = BATCH\n    return batch, batch",
    "a list": "x, y = BATCH\n    return [x, y]",
    "a name from before": "z = 1\n    x, y = BATCH\n    z = z + x\n    return z, y",
    "a branch": "if params:\n        x, y = BATCH\n    return x, y",
    "another dataset": "iterator = data.make_one_shot_iterator()\n    data = 1\n"
    "    x, y = iterator.get_next()\n    return x, data",
    "two batches of an iterator": "i = data.make_one_shot_iterator()\n"
    "    x, y = i.get_next()\n    z, w = i.get_next()\n    return x, w",
    "two batches": "x, y = BATCH\n    z, w = BATCH\n    return x, w",
    "nested parts": "(x, y), z = BATCH\n    return x, z",
    "one part twice": "_, _ = BATCH\n    return 1, 2",
}


@pytest.mark.parametrize("body", BY_HAND.values(), ids=BY_HAND)
def test_uncertain_inputs_are_marked(tmp_path, body: str) -> None:
    body = body.replace("BATCH", "data().make_one_shot_iterator().get_next()")
    source = f"def input_fn(params):\n    {body}\n"
    code = ported(tmp_path, source)
    assert "move what follows into" in " ".join(code.replace("#", "").split())
    lines = [line for line in code.splitlines(True) if line.strip()[:1] != "#"]
    assert "".join(lines) == source


def test_batches_of_a_script_are_marked(tmp_path) -> None:
    """A script that calls an input would receive the dataset."""
    code = ported(
        tmp_path,
        """
        def input_fn(params):
            return data().make_one_shot_iterator().get_next()


        def main():
            features, labels = input_fn({})
            print(features)
        """,
    )
    assert "move what follows into" in " ".join(code.replace("#", "").split())
    assert "features, labels = input_fn({})" in code


def test_batches_are_equal(tmp_path) -> None:
    before = """
        import tensorflow.compat.v1 as tf


        def input_fn(params):
            dataset = tf.data.Dataset.range(12).map(lambda i: (i, i + 1))
            x, y = dataset.batch(4).make_one_shot_iterator().get_next()
            scale = tf.constant(2, tf.int64)
            if params["scaled"]:
                x *= scale
            return {"x": x}, y
    """
    path = tmp_path / "program.py"
    path.write_text(textwrap.dedent(before))
    code = port(path).files[pathlib.Path("program.py")].code
    old, new = {}, {}
    exec(path.read_text(), old)
    exec(code, new)
    tf = old["tf"]
    for params in ({"scaled": True}, {"scaled": False}):
        with tf.Graph().as_default(), tf.Session() as session:
            batch = old["input_fn"](params)
            expected = [session.run(batch) for _ in range(3)]
        batches = list(new["input_fn"](params).as_numpy_iterator())
        np.testing.assert_equal(batches, expected)
