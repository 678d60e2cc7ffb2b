"""Calls of `tf.contrib.slim` about input: decoders, readers and queues."""

import os
import tempfile

import numpy as np
import tensorflow.compat.v1 as tf

from contrib_calls.calling import floats, x


def _feature(value):
    value = np.asarray(value)
    if value.dtype.kind == "S":
        kept = {"bytes_list": tf.train.BytesList(value=value.ravel())}
    elif value.dtype.kind == "f":
        kept = {"float_list": tf.train.FloatList(value=value.ravel())}
    else:
        kept = {"int64_list": tf.train.Int64List(value=value.ravel())}
    return tf.train.Feature(**kept)


def _example(**values):
    features = {name: _feature(value) for name, value in values.items()}
    made = tf.train.Example(features=tf.train.Features(feature=features))
    return made.SerializeToString()


BOXES = {
    "ymin": floats(2),
    "xmin": floats(2, start=2.0),
    "ymax": floats(2, start=3.0),
    "xmax": floats(2, start=4.0),
}
FLOATS = tf.FixedLenFeature([4], tf.float32)
NUMBERS = tf.VarLenFeature(tf.int64)
TEXT = tf.FixedLenFeature((), tf.string)


def _decoded(make, features, **values):
    """Returns a call that decodes `features` of an example."""

    def call(contrib):
        decoding = contrib.slim.tfexample_decoder
        decoder = decoding.TFExampleDecoder(features, {"item": make(decoding)})
        return decoder.list_items() + decoder.decode(_example(**values))

    return call


def _image(contrib):
    """Returns a call that decodes a PNG and raw bytes."""
    decoding = contrib.slim.tfexample_decoder
    pixels = (np.abs(floats(2, 3, 3)) * 255).astype("uint8")
    with tf.Graph().as_default(), tf.Session() as session:
        png = session.run(tf.image.encode_png(pixels))
    features = {"image/encoded": TEXT, "image/format": TEXT}
    made = []
    for data, kind in ((png, b"png"), (pixels.tobytes(), b"raw")):
        handler = decoding.Image(shape=[2, 3, 3], channels=3)
        decoder = decoding.TFExampleDecoder(features, {"image": handler})
        values = {
            "image/encoded": np.asarray(data, object).astype("S"),
            "image/format": np.asarray(kind),
        }
        # NumPy strips trailing zeros from bytes.
        example = tf.train.Example.FromString(_example(**values))
        kept = example.features.feature["image/encoded"].bytes_list
        kept.value[0] = data
        made += decoder.decode(example.SerializeToString())
    return made


def _looked_up(decoding):
    keys = tf.lookup.KeyValueTensorInitializer(
        tf.constant([2, 5], tf.int64), tf.constant([0.5, 0.25])
    )
    table = tf.lookup.StaticHashTable(keys, -1.0)
    return decoding.LookupTensor("numbers", table, default_value=-1)


def _own_decoder(contrib):
    class Decoder(contrib.slim.data_decoder.DataDecoder):
        def decode(self, data, items):
            return [data for _ in items]

        def list_items(self):
            return ["a", "b"]

    decoder = Decoder()
    return decoder.decode(3, decoder.list_items())


def _own_provider(contrib):
    made = contrib.slim.data_provider.DataProvider({"a": x(2), "b": x(3)}, 7)
    return [sorted(made.list_items()), made.num_samples(), made.get(["b"])]


def _in_files(read):
    """Returns a call that reads two files with three records each."""

    def call(contrib):
        with tempfile.TemporaryDirectory() as folder:
            paths = [os.path.join(folder, name) for name in ("a", "b")]
            for start, path in enumerate(paths):
                with tf.python_io.TFRecordWriter(path) as writer:
                    for i in range(3):
                        writer.write(_example(number=[start * 3 + i]))
            with tf.Graph().as_default():
                return read(contrib, paths)

    return call


def _run(contrib, tensors, count, sort=True):
    """Runs a tensor from queues several times, in order."""
    with tf.Session() as session:
        session.run(
            [
                tf.global_variables_initializer(),
                tf.local_variables_initializer(),
            ]
        )
        with contrib.slim.queues.QueueRunners(session):
            rows = [session.run(tensors) for _ in range(count)]
    return sorted(rows) if sort else rows


def _single_pass(contrib, paths):
    _, record = contrib.slim.parallel_reader.single_pass_read(
        paths, reader_class=tf.TFRecordReader
    )
    features = {"number": tf.FixedLenFeature((), tf.int64)}
    number = tf.parse_single_example(record, features)["number"]
    return _run(contrib, number, 6)


def _parallel(contrib, paths):
    reading = contrib.slim.parallel_reader
    _, record = reading.parallel_read(
        paths, tf.TFRecordReader, num_epochs=1, num_readers=2, shuffle=False
    )
    features = {"number": tf.FixedLenFeature((), tf.int64)}
    number = tf.parse_single_example(record, features)["number"]
    names = reading.get_data_files(os.path.dirname(paths[0]) + "/*")
    reader = reading.ParallelReader(
        tf.TFRecordReader, tf.FIFOQueue(9, [tf.string] * 2), num_readers=3
    )
    return [
        _run(contrib, number, 6),
        sorted(os.path.basename(name) for name in names),
        reader.num_readers,
    ]


def _provided(contrib, paths):
    slim = contrib.slim
    decoder = slim.tfexample_decoder.TFExampleDecoder(
        {"number": tf.FixedLenFeature((), tf.int64)},
        {"number": slim.tfexample_decoder.Tensor("number")},
    )
    dataset = slim.dataset.Dataset(
        paths, tf.TFRecordReader, decoder, 6, {"number": "A number."}
    )
    provider = slim.dataset_data_provider.DatasetDataProvider(
        dataset, num_readers=1, shuffle=False
    )
    (number,) = provider.get(["number"])
    return [
        dataset.num_samples,
        sorted(provider.list_items()),
        _run(contrib, number, 6),
    ]


def _prefetched(contrib):
    with tf.Graph().as_default():
        queue = contrib.slim.prefetch_queue.prefetch_queue([x(2), x(3)])
        return _run(contrib, queue.dequeue(), 2, sort=False)


def _nested(contrib):
    queues = contrib.slim.queues
    with tf.Graph().as_default(), tf.Session() as session:
        with queues.QueueRunners(session):
            try:
                with queues.QueueRunners(session):
                    return "nested"
            except queues.NestedQueueRunnerError as error:
                return str(error)


CALLS = {
    "data_decoder.DataDecoder": _own_decoder,
    "data_provider.DataProvider": _own_provider,
    "dataset_data_provider.DatasetDataProvider": _in_files(_provided),
    "parallel_reader.parallel_read": _in_files(_parallel),
    "parallel_reader.single_pass_read": _in_files(_single_pass),
    "prefetch_queue.prefetch_queue": _prefetched,
    "queues.NestedQueueRunnerError": _nested,
    "tfexample_decoder.BackupHandler": _decoded(
        lambda d: d.BackupHandler(d.Tensor("none"), d.Tensor("numbers", shape=[3])),
        {"none": NUMBERS, "numbers": NUMBERS},
        numbers=[5, 2, 7],
    ),
    "tfexample_decoder.BoundingBox": _decoded(
        lambda d: d.BoundingBox(prefix="box/"),
        {f"box/{name}": tf.VarLenFeature(tf.float32) for name in BOXES},
        **{f"box/{name}": value for name, value in BOXES.items()},
    ),
    "tfexample_decoder.Image": _image,
    "tfexample_decoder.ItemHandlerCallback": _decoded(
        lambda d: d.ItemHandlerCallback(["a", "b"], lambda read: read["a"] - read["b"]),
        {"a": FLOATS, "b": FLOATS},
        a=floats(4),
        b=floats(4, start=2.0),
    ),
    "tfexample_decoder.LookupTensor": _decoded(
        _looked_up, {"numbers": NUMBERS}, numbers=[5, 2, 7]
    ),
    "tfexample_decoder.SparseTensor": _decoded(
        lambda d: d.SparseTensor("indices", "values", shape=[6], densify=True),
        {
            "indices": NUMBERS,
            "values": tf.VarLenFeature(tf.float32),
        },
        indices=[1, 4],
        values=floats(2),
    ),
    "tfexample_decoder.Tensor": _decoded(
        lambda d: d.Tensor("numbers", shape_keys="shape"),
        {"numbers": NUMBERS, "shape": tf.FixedLenFeature([2], tf.int64)},
        numbers=[5, 2, 7, 1],
        shape=[2, 2],
    ),
}
# Other entries also call these functions.
ALIASES = {
    "dataset.Dataset": "dataset_data_provider.DatasetDataProvider",
    "parallel_reader.ParallelReader": "parallel_reader.parallel_read",
    "parallel_reader.get_data_files": "parallel_reader.parallel_read",
    "queues.QueueRunners": "queues.NestedQueueRunnerError",
    "tfexample_decoder.ItemHandler": "tfexample_decoder.ItemHandlerCallback",
    "tfexample_decoder.TFExampleDecoder": "tfexample_decoder.Tensor",
}
