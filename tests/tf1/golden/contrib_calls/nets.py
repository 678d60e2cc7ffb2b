"""Calls of the networks of `tf.contrib.slim`."""

import importlib
import zlib

import numpy as np
import tensorflow.compat.v1 as tf

from contrib_calls.calling import floats, x


def _made(name, size, make, count=4):
    """Returns a call with some outputs and the variables of a network.

    Args:
        name: The name of its module.
        size: The height and width of the image.
        make: A function from the module and an image to a tensor and other tensors by
            name.
        count: The number of outputs.
    """

    def call(contrib):
        del contrib
        path = f"tensorflow.contrib.slim.python.slim.nets.{name}"
        module = importlib.import_module(path)
        with tf.Graph().as_default(), tf.Session() as session:
            out, others = make(module, x(1, size, size, 3))
            variables = tf.global_variables()
            shapes = {v.op.name: v.shape.as_list() for v in variables}
            session.run(tf.global_variables_initializer())
            trained = [v.initializer for v in tf.trainable_variables()]
            fed = {each.inputs[1]: _weights(each.inputs[1]) for each in trained}
            session.run(trained, fed)
            numbers = np.ravel(session.run(out))
        return [
            len(shapes),
            # A checksum of hundreds of names and shapes.
            zlib.crc32(repr(sorted(shapes.items())).encode()),
            sorted({key.split("/")[-1] for key in others}),
            numbers[:count],
        ]

    return call


def _weights(tensor):
    """Returns numbers of a size that layers preserve."""
    shape = tensor.shape.as_list()
    scale = np.sqrt(3.0 / max(1, np.prod(shape[:-1])))
    return floats(*shape) * np.float32(scale)


def _scopes():
    return importlib.import_module("tensorflow.contrib.framework")


def _whole(name, size, function=None, scoped=None, **kwargs):
    """Returns a call of a network with classes."""

    def make(module, images):
        scope = scoped or f"{name}_arg_scope"
        with _scopes().arg_scope(getattr(module, scope)()):
            return getattr(module, function or name)(
                images, num_classes=4, is_training=False, **kwargs
            )

    return _made(name, size, make)


def _inception(version, size, **kwargs):
    return _whole(f"inception_v{version}", size, **kwargs)


def _vgg(function):
    return _whole("vgg", 224, function)


def _resnet(version):
    """Returns a call of a small ResNet, with a stride and with a rate."""

    def make(module, images):
        block = getattr(module, f"resnet_v{version}_block")
        blocks = [block("a", 2, 2, 2), block("b", 3, 2, 1)]
        scope = module.resnet_utils.resnet_arg_scope()
        with _scopes().arg_scope(scope):
            return getattr(module, f"resnet_v{version}")(
                images,
                blocks,
                num_classes=4,
                is_training=False,
                output_stride=8,
                scope="net",
            )

    return _made(f"resnet_v{version}", 32, make)


def _known_resnet(version, layers):
    name = f"resnet_v{version}"

    def make(module, images):
        function = getattr(module, f"{name}_{layers}")
        norm = importlib.import_module("tensorflow.contrib.layers").batch_norm
        # The order of hundreds of sums differs.
        images = tf.cast(images, tf.float64)
        with _scopes().arg_scope([norm], fused=False):
            return function(images, num_classes=4, is_training=False)

    return _made(name, 32, make)


CALLS = {
    "resnet_v1.resnet_v1": _resnet(1),
    "resnet_v2.resnet_v2": _resnet(2),
}
# These have tens of millions of weights, or hundreds of layers.
LARGE = {
    "alexnet.alexnet_v2": _whole("alexnet", 224, "alexnet_v2", "alexnet_v2_arg_scope"),
    "inception_v1.inception_v1": _inception(1, 224),
    "inception_v2.inception_v2": _inception(2, 64, depth_multiplier=0.1),
    "inception_v3.inception_v3": _inception(3, 107, depth_multiplier=0.1),
    "overfeat.overfeat": _whole("overfeat", 231),
    **{
        f"resnet_v{version}.resnet_v{version}_{layers}": _known_resnet(version, layers)
        for version in (1, 2)
        for layers in (50, 101, 152, 200)
    },
    "vgg.vgg_16": _vgg("vgg_16"),
    "vgg.vgg_19": _vgg("vgg_19"),
    "vgg.vgg_a": _vgg("vgg_a"),
}
CALLS.update(LARGE)
# The functions that networks are made with.
ALIASES = {
    **{
        f"{name.split('.')[0]}.trunc_normal": name
        for name in LARGE
        if not name.startswith(("resnet", "vgg"))
    },
    "alexnet.alexnet_v2_arg_scope": "alexnet.alexnet_v2",
    **{
        f"inception_v{version}.inception_v{version}_{part}": (
            f"inception_v{version}.inception_v{version}"
        )
        for version in (1, 2, 3)
        for part in ("arg_scope", "base")
    },
    "overfeat.overfeat_arg_scope": "overfeat.overfeat",
    **{
        f"resnet_utils.{name}": "resnet_v1.resnet_v1"
        for name in (
            "Block",
            "conv2d_same",
            "resnet_arg_scope",
            "stack_blocks_dense",
            "subsample",
        )
    },
    **{
        f"resnet_v{version}.{name}": f"resnet_v{version}.resnet_v{version}"
        for version in (1, 2)
        for name in ("bottleneck", f"resnet_v{version}_block")
    },
    "vgg.vgg_arg_scope": "vgg.vgg_16",
    "vgg.vgg_d": "vgg.vgg_16",
    "vgg.vgg_e": "vgg.vgg_19",
}
