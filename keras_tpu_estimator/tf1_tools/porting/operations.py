"""Counterparts of operations on tensors, and of control flow."""

from keras_tpu_estimator.tf1_tools.porting.records import Row
from keras_tpu_estimator.tf1_tools.porting.records import Section
from keras_tpu_estimator.tf1_tools.porting.records import same


def _ops(names: str, note: str = "") -> Row:
    """A row of names and counterparts in `keras.ops`, as `a=b c=d`."""
    pairs = (pair.split("=") for pair in names.split())
    return Row(
        {f"tf.{before}": f"`keras.ops.{now}`" for before, now in pairs},
        note=note,
    )


OPERATIONS = Section(
    "4-operations",
    (
        _ops(
            "reduce_mean=mean reduce_sum=sum reduce_max=max reduce_min=min "
            "reduce_prod=prod reduce_any=any reduce_all=all "
            "reduce_logsumexp=logsumexp",
            "`keepdims`, not `keep_dims`",
        ),
        same(
            "tf",
            "keras.ops",
            "matmul einsum tensordot reshape transpose expand_dims squeeze "
            "stack unstack tile pad cast where one_hot zeros ones "
            "zeros_like ones_like eye linspace cumsum cumprod abs sign square "
            "sqrt rsqrt exp log log1p erf tanh sigmoid sin cos maximum minimum "
            "add subtract multiply divide equal not_equal less less_equal "
            "greater greater_equal logical_and logical_or logical_not argmax "
            "argmin floor ceil round stop_gradient convert_to_tensor roll "
            "broadcast_to slice repeat norm size searchsorted sort "
            "argsort meshgrid",
            before="`tf.matmul`, `tf.reshape`, `tf.cast`, `tf.one_hot`, "
            "`tf.exp`, `tf.argmax`, `tf.stop_gradient`, ...",
            note="or `jax.numpy`; `one_hot` wants `dtype`, if not float32, "
            "and no `on_value`; `matmul` has no `transpose_b`",
        ),
        Row(
            {"tf.shape": "`x.shape`"},
            before="`tf.shape(x)[0]`, `x.shape.as_list()`, `x.shape.ndims`, "
            "`x.shape[0].value`",
            now="`x.shape[0]`, `list(x.shape)`, `len(x.shape)`, `x.shape[0]`",
            note="sizes are numbers of Python: compute with them by `math`, "
            "not by `keras.ops`",
        ),
        _ops("constant=convert_to_tensor"),
        _ops(
            "to_float=cast to_int32=cast to_int64=cast to_double=cast",
            'to `"float32"`, ...',
        ),
        Row(
            {
                "tf.nest.map_structure": "`jax.tree.map`",
                "tf.nest.flatten": "`jax.tree.leaves`",
                "tf.nest.*": "`jax.tree`",
                "tf.contrib.framework.nest.*": "`jax.tree`",
                "tf.newaxis": "`None`",
            },
            before="`tf.nest.map_structure`, `tf.nest.flatten`, `tf.newaxis`",
            now="`jax.tree.map`, `jax.tree.leaves`, `None`",
        ),
        _ops("concat=concatenate pow=power range=arange"),
        _ops("fill=full rank=ndim negative=negative"),
        _ops("div=divide truediv=divide floordiv=floor_divide mod=mod"),
        _ops("split=split", "a list gives the places to cut at, not sizes"),
        _ops(
            "gather=take nn.embedding_lookup=take",
            "with `axis=0`, which is not its default",
        ),
        _ops("gather_nd=get_item", "of a tuple of indices, as `x[i, j]`"),
        Row(
            {"tf.batch_gather": "`keras.ops.take_along_axis`"},
        ),
        Row({"tf.clip_by_value": "`keras.ops.clip`", "tf.add_n": "`sum`"}),
        _ops("squared_difference=square", "of the difference"),
        _ops(
            "scatter_nd=scatter tensor_scatter_update=scatter_update "
            "unsorted_segment_sum=segment_sum segment_sum=segment_sum"
        ),
        _ops("reverse=flip reverse_v2=flip div_no_nan=divide_no_nan"),
        _ops("matrix_band_part=tril", "or `keras.ops.triu`"),
        _ops("nn.top_k=top_k"),
        _ops(
            "nn.in_top_k=in_top_k",
            "`(targets, predictions, k)`: TF1 has predictions first",
        ),
        _ops("nn.moments=moments"),
        Row(
            {"tf.nn.l2_loss": "`keras.ops.sum`"},
            before="`tf.nn.l2_loss(x)`",
            now="`keras.ops.sum(x**2) / 2`",
        ),
        Row(
            {"tf.nn.l2_normalize": "`keras.ops.normalize`"},
        ),
        same(
            "tf.nn",
            "keras.ops",
            "relu relu6 elu selu leaky_relu softplus softsign softmax "
            "log_softmax tanh sigmoid",
            note="`leaky_relu` has `negative_slope` in place of `alpha`",
            before="`tf.nn.relu`, `tf.nn.softmax`, `tf.nn.tanh`, ...",
        ),
        _ops("nn.swish=silu nn.silu=silu log_sigmoid=log_sigmoid"),
        _ops(
            "nn.conv2d=conv nn.max_pool=max_pool nn.avg_pool=average_pool "
            "nn.depthwise_conv2d=depthwise_conv",
            'without the 1s for batch and channels, and "same" in small '
            "letters",
        ),
        _ops("nn.bias_add=add nn.batch_normalization=batch_normalization"),
        _ops(
            "image.resize_bilinear=image.resize image.resize=image.resize "
            "image.resize_images=image.resize image.*=image"
        ),
        Row(
            {
                f"tf.contrib.image.{name}": "`keras.ops.image.affine_transform`"
                for name in ("transform", "rotate", "translate")
            },
            note="of the eight numbers of `transform`, the last two of which "
            "have to be 0",
        ),
        _ops(
            "bitwise.bitwise_and=bitwise_and bitwise.bitwise_or=bitwise_or "
            "bitwise.bitwise_xor=bitwise_xor bitwise.invert=bitwise_invert "
            "bitwise.left_shift=left_shift bitwise.right_shift=right_shift"
        ),
        Row(
            {
                "tf.random_normal": "`keras.random.normal`",
                "tf.random_uniform": "`keras.random.uniform`",
                "tf.truncated_normal": "`keras.random.truncated_normal`",
                "tf.random_shuffle": "`keras.random.shuffle`",
                "tf.multinomial": "`keras.random.categorical`",
                "tf.random.normal": "`keras.random.normal`",
                "tf.random.uniform": "`keras.random.uniform`",
                "tf.random.truncated_normal": "`keras.random.truncated_normal`",
                "tf.random.shuffle": "`keras.random.shuffle`",
                "tf.random.categorical": "`keras.random.categorical`",
                "tf.random.*": "`keras.random`",
            },
            before="`tf.random_normal(shape)`, `tf.random_uniform`, "
            "`tf.multinomial`, ...",
            now="`keras.random.normal(shape, seed=seeds)`, `uniform`, "
            "`categorical`, ...",
            note="with `seeds = keras.random.SeedGenerator()`, made in "
            "`model_fn`",
        ),
        Row(
            {"tf.set_random_seed": "`kte.RunConfig(tf_random_seed=...)`"},
        ),
        _ops(
            "cond=cond case=switch while_loop=while_loop map_fn=map scan=scan"
        ),
        Row(
            {"tf.TensorArray": "`jax.lax.scan`"},
        ),
        Row(
            {
                "tf.control_dependencies": "nothing",
                "tf.group": "a list of train ops",
                "tf.no_op": "`None`",
                "tf.tuple": "nothing",
            },
            before="`tf.control_dependencies`, `tf.group`, `tf.no_op`",
            now="nothing: code has its effects where it stands; a spec takes "
            "a list as its `train_op`",
        ),
        Row(
            {"tf.identity": "`kte.identity`"},
            before='`tf.identity(x, name="scores")`',
            now='`kte.identity(x, name="scores")`',
            note="for hooks; nothing otherwise",
        ),
        Row(
            {
                "tf.Print": "`jax.debug.print`",
                "tf.print": "`jax.debug.print`",
            },
        ),
        Row(
            {
                "tf.py_func": "`kte.outside_compilation`",
                "tf.py_function": "`kte.outside_compilation`",
                "tf.numpy_function": "`kte.outside_compilation`",
                "tf.contrib.tpu.outside_compilation": "`kte."
                "outside_compilation`",
                "tf.tpu.outside_compilation": "`kte.outside_compilation`",
            },
            now="`kte.outside_compilation`",
            note="or in `input_fn`, or in `host_call`",
        ),
        Row(
            {
                "tf.tpu.cross_replica_sum": "`kte.cross_replica_sum`",
                "tf.contrib.tpu.cross_replica_sum": "`kte.cross_replica_sum`",
            },
        ),
        Row(
            {"tf.custom_gradient": "`jax.custom_vjp`"},
        ),
        Row(
            {
                "tf.string": "the same, in `input_fn`",
                "tf.strings.*": "the same, in `input_fn`",
                "tf.string_split": "the same, in `input_fn`",
                "tf.as_string": "the same, in `input_fn`",
                "tf.string_to_number": "the same, in `input_fn`",
                "tf.string_join": "the same, in `input_fn`",
                "tf.decode_raw": "the same, in `input_fn`",
                "tf.parse_example": "the same, in `input_fn`",
                "tf.parse_single_example": "the same, in `input_fn`",
                "tf.FixedLenFeature": "the same, in `input_fn`",
                "tf.VarLenFeature": "the same, in `input_fn`",
                "tf.contrib.lookup.*": "the same, in `input_fn`",
                "tf.lookup.*": "the same, in `input_fn`",
            },
            before="strings, `tf.parse_example`, lookup tables",
            now="the same, in `input_fn`",
            note="`import tensorflow.compat.v1 as tf` keeps their names",
        ),
        Row(
            {
                f"tf.{name}": f'`"{name}"`'
                for name in "bfloat16 float16 float32 float64 int8 int32 int64 "
                "uint8 bool".split()
            },
            before="`tf.float32`, `tf.int32`, ...",
            now='`"float32"`, `"int32"`, ...',
        ),
        Row(
            {
                "tf.Assert": "nothing",
                "tf.debugging.*": "nothing",
                "tf.assert_equal": "nothing",
                "tf.assert_less": "nothing",
                "tf.assert_less_equal": "nothing",
                "tf.assert_greater": "nothing",
                "tf.assert_greater_equal": "nothing",
                "tf.assert_rank": "nothing",
                "tf.check_numerics": "`kte.RunConfig(debug_nans=True)`",
            },
            before="`tf.assert_equal`, `tf.check_numerics`",
            now="Python's `if` for shapes, `RunConfig(debug_nans=True)`",
        ),
        Row(
            {
                "tf.math.*": "`keras.ops`",
                "tf.nn.*": "`keras.ops`",
                "tf.linalg.*": "`keras.ops.linalg`",
                "tf.sparse.*": "`keras.ops`",
            },
            before="other operations",
            now="`keras.ops`, `jax.numpy`, `jax.nn`",
        ),
    ),
)
