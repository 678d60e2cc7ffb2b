"""Calls of `tf.contrib.crf`, `.rnn`, `.seq2seq`, `.image` and `.data`."""

import tensorflow.compat.v1 as tf

from contrib_calls.calling import floats, image, x

LENGTHS = [4, 2, 1]
TAGS = [[0, 1, 2, 1], [1, 1, 0, 0], [2, 0, 0, 0]]


def _crf(name, *more):
    def call(contrib):
        given = {
            "inputs": x(3, 4, 3),
            "tag_indices": tf.constant(TAGS),
            "sequence_lengths": tf.constant(LENGTHS),
            "transition_params": x(3, 3, start=2.0),
        }
        made = getattr(contrib.crf, name)(**{key: given[key] for key in more})
        return [made, tf.gradients(made, given["inputs"])]

    return call


def _likelihood(contrib):
    given = x(3, 4, 3)
    made, parameters = contrib.crf.crf_log_likelihood(
        given, tf.constant(TAGS), tf.constant(LENGTHS)
    )
    return [made, tf.gradients(made, [given, parameters])]


def _unrolled(make, **kwargs):
    """Returns a call with outputs, states and a gradient of a cell over a sequence."""

    def call(contrib):
        given = x(2, 3, 4)
        outputs, state = tf.nn.dynamic_rnn(
            make(contrib.rnn), given, dtype=tf.float32, **kwargs
        )
        return [outputs, state, tf.gradients(outputs, given)]

    return call


def _phased(contrib):
    results = []
    times = tf.constant([[[0.5], [2.25], [3.5]]] * 2)
    for scope, options in (("plain", {}), ("peepholes", {"use_peepholes": True})):
        given = x(2, 3, 4)
        cell = contrib.rnn.PhasedLSTMCell(3, period_init_max=2.0, **options)
        outputs, state = tf.nn.dynamic_rnn(
            cell, (times, given), dtype=tf.float32, scope=scope
        )
        results.append([outputs, state, tf.gradients(outputs, [given, times])])
    return results


def _convolved(axes):
    """Returns a call of a convolutional cell over a sequence."""

    def call(contrib):
        given = x(2, 3, *[4] * axes, 2)
        cell = getattr(contrib.rnn, f"Conv{axes}DLSTMCell")(
            input_shape=[4] * axes + [2], output_channels=3, kernel_shape=[3] * axes
        )
        outputs, state = tf.nn.dynamic_rnn(cell, given, dtype=tf.float32)
        return [outputs, state, tf.gradients(outputs, given)]

    return call


def _looked_up(contrib):
    cell = contrib.rnn.EmbeddingWrapper(contrib.rnn.GRUCell(3), 5, 4)
    outputs, state = tf.nn.dynamic_rnn(
        cell, tf.constant([[[0], [4], [2]], [[1], [1], [3]]]), dtype=tf.float32
    )
    return [outputs, state]


def _stacked(contrib):
    cells = [[contrib.rnn.GRUCell(3) for _ in range(2)] for _ in range(2)]
    return contrib.rnn.stack_bidirectional_rnn(
        cells[0], cells[1], tf.unstack(x(3, 2, 4)), dtype=tf.float32
    )


def _fused(contrib):
    cell = contrib.rnn.LSTMBlockFusedCell(3, use_peephole=False)
    outputs, state = cell(
        x(3, 2, 4), dtype=tf.float32, sequence_length=tf.constant([3, 2])
    )
    return [outputs, state]


def _reversed(contrib):
    given, results = x(3, 2, 4), []
    forward, backward, scoped = (contrib.rnn.LSTMBlockFusedCell(3) for _ in range(3))
    for cell, scope in (
        (forward, None),
        (contrib.rnn.TimeReversedFusedRNN(backward), None),
        (scoped, "scoped"),
    ):
        outputs, state = cell(
            given,
            dtype=tf.float32,
            sequence_length=tf.constant([3, 2]),
            scope=scope,
        )
        results.append([outputs, state, tf.gradients(outputs, given)])
    return results


def _adapted(contrib):
    cells = [
        contrib.rnn.FusedRNNCellAdaptor(contrib.rnn.BasicRNNCell(3), is_loop)
        for is_loop in (False, True)
    ]
    steps = tf.unstack(x(3, 2, 4))
    with tf.variable_scope("unrolled"):
        first = contrib.rnn.TimeReversedFusedRNN(cells[0])(steps, dtype=tf.float32)
    with tf.variable_scope("loop"):
        second = cells[1](steps, dtype=tf.float32, sequence_length=tf.constant([3, 1]))
    return [first, second]


def _both_ways(contrib):
    cells = [[tf.nn.rnn_cell.BasicLSTMCell(3) for _ in range(2)] for _ in range(2)]
    return contrib.rnn.stack_bidirectional_dynamic_rnn(
        cells[0],
        cells[1],
        x(2, 4, 5),
        dtype=tf.float32,
        sequence_length=tf.constant([4, 2]),
    )


def _static(contrib):
    cell = contrib.rnn.GRUCell(3)
    return contrib.rnn.static_rnn(cell, tf.unstack(x(3, 2, 4)), dtype=tf.float32)


def _mapped(contrib):
    """Computes linear maps of one tensor and of two, with all options."""
    from tensorflow.contrib.rnn.python.ops import core_rnn_cell

    one, two = x(2, 3), x(2, 4, start=2.0)
    with tf.variable_scope("one"):
        made = [core_rnn_cell._linear(one, 2, bias=False)]
    initializer = tf.constant_initializer(0.5)
    with tf.variable_scope("two", partitioner=_halves):
        made.append(
            core_rnn_cell._linear([one, two], 4, True, initializer, initializer)
        )
    with tf.variable_scope("three"):
        kept = core_rnn_cell._Linear([one, two], 2, True)
    made += [kept([one, two]), kept([-one, two])]
    for wrong in (None, [], x(3), tf.placeholder(tf.float32, [2, None])):
        try:
            core_rnn_cell._linear(wrong, 2, True)
        except ValueError:
            made.append("refused")
    return [made, tf.gradients(made[:4], [one, two])]


def _halves(shape, **kwargs):
    del kwargs
    return [2] + [1] * (len(shape) - 1)


def _loss(**kwargs):
    def call(contrib):
        return contrib.seq2seq.sequence_loss(
            x(2, 3, 4),
            tf.constant([[1, 2, 0], [3, 0, 0]]),
            tf.constant([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]]),
            **kwargs,
        )

    return call


def _all_of(data):
    """Returns the elements of a dataset."""
    following = tf.data.make_one_shot_iterator(data).get_next()
    found = []
    with tf.Session() as session:
        while True:
            try:
                found.append(session.run(following))
            except tf.errors.OutOfRangeError:
                return found


def _padded(contrib):
    data = tf.data.Dataset.range(1, 6).map(lambda n: tf.fill([n], n))
    return _all_of(data.apply(contrib.data.padded_batch_and_drop_remainder(2, [None])))


def _frequencies(contrib):
    """Calls a cell once, whose state has another size than it declares."""
    results = []
    for scope, options in (
        ("plain", {}),
        ("peepholes", {"use_peepholes": True, "cell_clip": 0.5, "num_unit_shards": 2}),
    ):
        cell = contrib.rnn.TimeFreqLSTMCell(
            3, feature_size=2, frequency_skip=2, **options
        )
        inputs, state = x(2, 4), x(2, 12, start=2.0)
        with tf.variable_scope(scope):
            outputs = cell(inputs, state)
        results.append([outputs, tf.gradients(outputs, [inputs, state])])
    return results


def _grid(name="GridLSTMCell", **options):
    settings = {"feature_size": 2, "frequency_skip": 1, "num_frequency_blocks": [3]}
    return _unrolled(lambda rnn: getattr(rnn, name)(3, **dict(settings, **options)))


# Two blocks of the four features.
_BLOCKS = {
    "num_frequency_blocks": [2, 1],
    "start_freqindex_list": [0, 2],
    "end_freqindex_list": [3, 4],
}


def _derived(contrib):
    """Runs cells of a program, which derives them from the two abstract ones."""

    class Cell(contrib.rnn.RNNCell):
        state_size = output_size = 3

        def call(self, inputs, state):
            kernel = tf.get_variable("kernel", [7, 3])
            state = tf.tanh(tf.matmul(tf.concat([inputs, state], 1), kernel))
            return state, state

    class Layer(contrib.rnn.LayerRNNCell):
        state_size = output_size = 3

        def build(self, inputs_shape):
            self.kernel = self.add_variable("kernel", shape=[7, 3])
            self.built = True

        def call(self, inputs, state):
            joined = tf.concat([inputs, state], 1)
            state = tf.tanh(tf.matmul(joined, self.kernel))
            return state, state

    class Fused(contrib.rnn.FusedRNNCell):
        def __call__(self, inputs, dtype=None, **kwargs):
            return 2.0 * inputs, tf.zeros([1], dtype)

    results = []
    for scope, cell in (
        ("cell", Cell()),
        ("layer", Layer()),
        ("wrapped", contrib.rnn.OutputProjectionWrapper(Layer(name="inner"), 2)),
    ):
        results.append(
            tf.nn.dynamic_rnn(cell, x(2, 3, 4), dtype=tf.float32, scope=scope)
        )
    turned = contrib.rnn.TimeReversedFusedRNN(Fused())
    results.append(turned(x(3, 2, 4), dtype=tf.float32))
    return results


CALLS = {
    "crf.crf_binary_score": _crf(
        "crf_binary_score",
        "tag_indices",
        "sequence_lengths",
        "transition_params",
    ),
    "crf.crf_decode": lambda c: c.crf.crf_decode(
        x(3, 4, 3), x(3, 3, start=2.0), tf.constant(LENGTHS)
    ),
    "crf.crf_log_likelihood": _likelihood,
    "crf.crf_log_norm": _crf(
        "crf_log_norm", "inputs", "sequence_lengths", "transition_params"
    ),
    "crf.crf_sequence_score": _crf(
        "crf_sequence_score",
        "inputs",
        "tag_indices",
        "sequence_lengths",
        "transition_params",
    ),
    "crf.crf_unary_score": _crf(
        "crf_unary_score", "tag_indices", "sequence_lengths", "inputs"
    ),
    "crf.viterbi_decode": lambda c: c.crf.viterbi_decode(
        floats(4, 3), floats(3, 3, start=2.0)
    ),
    "data.assert_element_shape": lambda c: _all_of(
        tf.data.Dataset.range(3).apply(c.data.assert_element_shape([]))
    ),
    "data.batch_and_drop_remainder": lambda c: _all_of(
        tf.data.Dataset.range(7).apply(c.data.batch_and_drop_remainder(3))
    ),
    "data.padded_batch_and_drop_remainder": _padded,
    "image.angles_to_projective_transforms": lambda c: (
        c.image.angles_to_projective_transforms([0.3, 1.0], 4.0, 5.0)
    ),
    "image.compose_transforms": lambda c: c.image.compose_transforms(
        c.image.angles_to_projective_transforms([0.3], 4.0, 5.0),
        c.image.translations_to_projective_transforms([[1.0, 2.0]]),
    ),
    "image.flat_transforms_to_matrices": lambda c: [
        c.image.flat_transforms_to_matrices(floats(2, 8)),
        c.image.flat_transforms_to_matrices(floats(8)),
    ],
    "image.matrices_to_flat_transforms": lambda c: c.image.matrices_to_flat_transforms(
        floats(2, 3, 3)
    ),
    "image.rotate": lambda c: c.image.rotate(image(), 0.4, "BILINEAR"),
    "image.transform": lambda c: c.image.transform(
        image(), [1.0, 0.1, 0.5, -0.1, 1.0, 0.3, 0.01, 0.02], "BILINEAR"
    ),
    "image.translate": lambda c: c.image.translate(image(), [1.0, -1.0]),
    "image.translations_to_projective_transforms": lambda c: (
        c.image.translations_to_projective_transforms([1.0, 2.0])
    ),
    "rnn.AttentionCellWrapper": _unrolled(
        lambda rnn: rnn.AttentionCellWrapper(rnn.BasicLSTMCell(3), 2)
    ),
    "rnn.AttentionCellWrapper, sizes": _unrolled(
        lambda rnn: rnn.AttentionCellWrapper(rnn.GRUCell(3), 3, 2, 5, 4)
    ),
    "rnn.BidirectionalGridLSTMCell": _grid("BidirectionalGridLSTMCell"),
    "rnn.BidirectionalGridLSTMCell, moved": _grid(
        "BidirectionalGridLSTMCell", backward_slice_offset=1, use_peepholes=True
    ),
    "rnn.BidirectionalGridLSTMCell, moved back": _grid(
        "BidirectionalGridLSTMCell", backward_slice_offset=-1, **_BLOCKS
    ),
    "rnn.CompiledWrapper": _unrolled(lambda rnn: rnn.CompiledWrapper(rnn.GRUCell(3))),
    "rnn.Conv1DLSTMCell": _convolved(1),
    "rnn.Conv2DLSTMCell": _convolved(2),
    "rnn.Conv3DLSTMCell": _convolved(3),
    "rnn.CoupledInputForgetGateLSTMCell": _unrolled(
        lambda rnn: rnn.CoupledInputForgetGateLSTMCell(3)
    ),
    "rnn.CoupledInputForgetGateLSTMCell, all": _unrolled(
        lambda rnn: rnn.CoupledInputForgetGateLSTMCell(
            3,
            use_peepholes=True,
            num_proj=2,
            proj_clip=0.3,
            num_unit_shards=4,
            num_proj_shards=2,
            state_is_tuple=False,
        )
    ),
    "rnn.CoupledInputForgetGateLSTMCell, normalized": _unrolled(
        lambda rnn: rnn.CoupledInputForgetGateLSTMCell(
            3, layer_norm=True, norm_gain=0.5, norm_shift=0.1
        )
    ),
    "rnn.EmbeddingWrapper": _looked_up,
    "rnn.FusedRNNCellAdaptor": _adapted,
    "rnn.GLSTMCell": _unrolled(lambda rnn: rnn.GLSTMCell(4, number_of_groups=2)),
    "rnn.GLSTMCell, projected": _unrolled(
        lambda rnn: rnn.GLSTMCell(4, num_proj=2, number_of_groups=2)
    ),
    "rnn.GRUBlockCell": _unrolled(lambda rnn: rnn.GRUBlockCell(3)),
    "rnn.GRUBlockCellV2": _unrolled(lambda rnn: rnn.GRUBlockCellV2(3)),
    "rnn.GridLSTMCell": _grid(),
    "rnn.GridLSTMCell, blocks": _grid(
        state_is_tuple=False, couple_input_forget_gates=True, **_BLOCKS
    ),
    "rnn.GridLSTMCell, coupled": _grid(
        use_peepholes=True, couple_input_forget_gates=True, num_unit_shards=2
    ),
    "rnn.GridLSTMCell, peepholes": _grid(use_peepholes=True, cell_clip=0.2),
    "rnn.GridLSTMCell, shared": _grid(
        use_peepholes=True, share_time_frequency_weights=True, **_BLOCKS
    ),
    "rnn.HighwayWrapper": _unrolled(lambda rnn: rnn.HighwayWrapper(rnn.GRUCell(4))),
    "rnn.HighwayWrapper, two gates": _unrolled(
        lambda rnn: rnn.HighwayWrapper(rnn.GRUCell(4), False, 0.5)
    ),
    "rnn.IndyGRUCell": _unrolled(lambda rnn: rnn.IndyGRUCell(3)),
    "rnn.IndyLSTMCell": _unrolled(lambda rnn: rnn.IndyLSTMCell(3)),
    "rnn.InputProjectionWrapper": _unrolled(
        lambda rnn: rnn.InputProjectionWrapper(rnn.GRUCell(3), 5, tf.nn.relu)
    ),
    "rnn.IntersectionRNNCell": _unrolled(lambda rnn: rnn.IntersectionRNNCell(4)),
    "rnn.IntersectionRNNCell, projected": _unrolled(
        lambda rnn: rnn.IntersectionRNNCell(3, num_in_proj=3)
    ),
    "rnn.OutputProjectionWrapper": _unrolled(
        lambda rnn: rnn.OutputProjectionWrapper(rnn.GRUCell(3), 2)
    ),
    "rnn.PhasedLSTMCell": _phased,
    "rnn.IndRNNCell": _unrolled(lambda rnn: rnn.IndRNNCell(3)),
    "rnn.NASCell": _unrolled(lambda rnn: rnn.NASCell(3)),
    "rnn.NASCell, projected": _unrolled(lambda rnn: rnn.NASCell(3, 2, use_bias=True)),
    "rnn.RNNCell": _derived,
    "rnn.SRUCell": _unrolled(lambda rnn: rnn.SRUCell(3)),
    "rnn.UGRNNCell": _unrolled(lambda rnn: rnn.UGRNNCell(3)),
    "rnn.GRUCell": _unrolled(lambda rnn: rnn.GRUCell(3)),
    "rnn.LSTMBlockCell": _unrolled(lambda rnn: rnn.LSTMBlockCell(3)),
    "rnn.LSTMBlockCell, peepholes": _unrolled(
        lambda rnn: rnn.LSTMBlockCell(3, use_peephole=True, cell_clip=0.5)
    ),
    "rnn.LSTMBlockFusedCell": _fused,
    "rnn.LSTMCell": _unrolled(
        lambda rnn: rnn.LSTMCell(3, use_peepholes=True, num_proj=2)
    ),
    "rnn.LayerNormBasicLSTMCell": _unrolled(lambda rnn: rnn.LayerNormBasicLSTMCell(3)),
    "rnn.MultiRNNCell": _unrolled(
        lambda rnn: rnn.MultiRNNCell(
            [rnn.BasicLSTMCell(3), rnn.ResidualWrapper(rnn.BasicRNNCell(3))]
        )
    ),
    "rnn.TimeFreqLSTMCell": _frequencies,
    "rnn.TimeReversedFusedRNN": _reversed,
    "rnn.best_effort_input_batch_size": lambda c: [
        c.rnn.best_effort_input_batch_size([x(4, 2)]),
        c.rnn.best_effort_input_batch_size(
            [tf.placeholder_with_default(x(4, 2), [4, None])]
        ),
    ],
    "rnn.python.ops.core_rnn_cell._linear": _mapped,
    "rnn.stack_bidirectional_dynamic_rnn": _both_ways,
    "rnn.stack_bidirectional_rnn": _stacked,
    "rnn.static_rnn": _static,
    "rnn.transpose_batch_time": lambda c: c.rnn.transpose_batch_time(x(2, 3, 1)),
    "seq2seq.sequence_loss": _loss(),
    "seq2seq.sequence_loss of each": _loss(average_across_batch=False),
    "seq2seq.sequence_loss of steps": _loss(average_across_timesteps=False),
    "seq2seq.sequence_loss, all": _loss(
        average_across_batch=False, average_across_timesteps=False
    ),
}
ALIASES = {
    "rnn.python.ops.core_rnn_cell._Linear": ("rnn.python.ops.core_rnn_cell._linear"),
    "rnn.ConvLSTMCell": "rnn.Conv2DLSTMCell",
    "rnn.BasicLSTMCell": "rnn.MultiRNNCell",
    "rnn.FusedRNNCell": "rnn.RNNCell",
    "rnn.LayerRNNCell": "rnn.RNNCell",
    "rnn.BasicRNNCell": "rnn.MultiRNNCell",
    "rnn.ResidualWrapper": "rnn.MultiRNNCell",
}
