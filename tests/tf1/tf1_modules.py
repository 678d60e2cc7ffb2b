"""Functions compiled by TensorFlow's bridge, called in JAX."""

import tensorflow.compat.v1 as tf
from jax.extend.core import Primitive

from keras_tpu_estimator.tf1.lift import jax_internals


def hlo_of(function, *shapes, dtype=tf.float32):
    """The HLO of a function of tensors."""
    specs = [tf.TensorSpec(shape, dtype) for shape in shapes]
    compiled = tf.function(function, jit_compile=True, autograph=False)
    return compiled.experimental_get_compiler_ir(*specs)(
        stage="hlo_serialized", platform_name="CPU"
    )


def imported_from(definition, x):
    """Applies a graph definition to its only placeholder, the first node."""
    rest = tf.GraphDef()
    rest.CopyFrom(definition)
    del rest.node[0]
    return tf.graph_util.import_graph_def(rest, {"x:0": x}, ["y:0"])


def primitive_of(module, avals, replacement=lambda op: None):
    """A primitive that is lowered to a module."""
    primitive = Primitive("inlined")
    primitive.multiple_results = True
    primitive.def_abstract_eval(lambda *args: avals)
    jax_internals.register_lowering(
        primitive,
        lambda context, *operands: jax_internals.inlined(
            context, module, "mine", operands, replacement
        ),
    )
    return primitive
