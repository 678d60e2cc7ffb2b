"""Names of `tf.contrib`: areas that are few lines, or none."""

from keras_tpu_estimator.tf1.look_alikes.tables.area import Area

_CLOUD = "Read the data with tf.data.TFRecordDataset, or with a generator."

CLOUD = Area("contrib.cloud", advice=_CLOUD)
SLIM = Area("contrib.slim", rest="tf_slim")
