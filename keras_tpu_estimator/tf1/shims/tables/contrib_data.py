"""Names of `tf.contrib` for input: data, images, tables."""

from keras_tpu_estimator.tf1.shims.tables.area import Area
from keras_tpu_estimator.tf1.shims.tables.area import missing
from keras_tpu_estimator.tf1.shims.tables.area import same

DATA = Area(
    "contrib.data",
    {
        **same(
            "AUTOTUNE Counter CsvDataset Optional RandomDataset Reducer "
            "SqlDataset TFRecordWriter bucket_by_sequence_length "
            "choose_from_datasets copy_to_device dense_to_sparse_batch "
            "enumerate_dataset get_next_as_optional get_single_element "
            "group_by_reducer group_by_window ignore_errors "
            "make_batched_features_dataset make_csv_dataset "
            "make_saveable_from_iterator map_and_batch parallel_interleave "
            "parse_example_dataset prefetch_to_device rejection_resample "
            "sample_from_datasets scan shuffle_and_repeat unbatch unique",
            "tf.data.experimental.",
        ),
        **same(
            "Dataset FixedLengthRecordDataset Iterator TFRecordDataset "
            "TextLineDataset",
            "tf.data.",
        ),
        **same(
            "assert_element_shape batch_and_drop_remainder "
            "padded_batch_and_drop_remainder",
            "keras_tpu_estimator.tf1.reimplemented.data:",
        ),
    },
    {
        "CheckpointInputPipelineHook": (
            "The position in the input is saved with every checkpoint. Leave "
            "it out."
        ),
        "LMDBDataset": "Read the file in a generator, with Python's lmdb.",
        "read_batch_features": "Use make_batched_features_dataset.",
        "reduce_dataset": "Use Dataset.reduce.",
        "sliding_window_batch": "Use Dataset.window.",
        **missing(
            "StatsAggregator latency_stats set_stats_aggregator",
            "The time spent on input is `input_wait` in the log.",
        ),
    },
)
IMAGE = Area(
    "contrib.image",
    same(
        "angles_to_projective_transforms compose_transforms rotate "
        "transform translate translations_to_projective_transforms",
        "keras_tpu_estimator.tf1.reimplemented.image:",
    ),
    missing(
        "bipartite_match connected_components dense_image_warp "
        "image_connected_components interpolate_spline "
        "single_image_random_dot_stereograms sparse_image_warp",
        "Compute it with SciPy in a generator that is the input.",
    ),
)
LOOKUP = Area(
    "contrib.lookup",
    {
        **same(
            "KeyValueTensorInitializer TextFileIndex TextFileInitializer "
            "TextFileIdTableInitializer TextFileStringTableInitializer "
            "IdTableWithHashBuckets HasherSpec HashTable MutableHashTable "
            "index_table_from_tensor index_table_from_file "
            "index_to_string_table_from_file "
            "index_to_string_table_from_tensor",
            "tensorflow.python.ops.lookup_ops:",
        ),
        "MutableDenseHashTable": (
            "tensorflow.python.ops.lookup_ops:DenseHashTable"
        ),
    },
    {
        "index_table_from_dataset": (
            "Use tf.data.experimental.index_table_from_dataset."
        ),
    },
)
STATELESS = Area(
    "contrib.stateless",
    {
        f"stateless_{name}": f"tf.random.stateless_{name}"
        for name in ("multinomial", "normal", "truncated_normal", "uniform")
    }
    | {
        "stateless_random_normal": "tf.random.stateless_normal",
        "stateless_random_uniform": "tf.random.stateless_uniform",
    },
)
