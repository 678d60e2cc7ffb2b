"""Tests small random KerasHub models in a `model_fn` and with `from_keras`."""

import itertools
import re

import keras
import numpy as np
import pytest
from helpers import estimator_of, some_slow
from keras import layers, ops

import keras_tpu_estimator as kte

keras_hub = pytest.importorskip(
    "keras_hub",
    reason="KerasHub, which `nox -s ecosystem` installs, is missing",
)
models = keras_hub.models

BATCH, STEPS, VOCABULARY, LENGTH, CLASSES = 16, 3, 13, 6, 3
RNG = np.random.default_rng(8)
COUNT = BATCH * STEPS
TOKENS = RNG.integers(0, VOCABULARY, size=(COUNT, LENGTH)).astype("int32")
# The first examples are the longest.
MASK = np.arange(LENGTH) < 2 + np.arange(COUNT)[::-1, None] % (LENGTH - 1)
IMAGES = RNG.normal(size=(COUNT, 8, 8, 3)).astype("float32")
CLASS = RNG.integers(0, CLASSES, size=COUNT).astype("int32")
GPT2_TEXT = {"token_ids": TOKENS, "padding_mask": MASK.astype("int32")}
BERT_TEXT = {**GPT2_TEXT, "segment_ids": TOKENS % 2}
SIZES = {
    "vocabulary_size": VOCABULARY,
    "num_layers": 2,
    "num_heads": 2,
    "hidden_dim": 8,
    "intermediate_dim": 12,
    "max_sequence_length": LENGTH,
}


def bert():
    return models.BertBackbone(**SIZES, dropout=0.0)


def gpt2():
    return models.GPT2Backbone(**SIZES, dropout=0.0)


def vit():
    return models.ViTBackbone(
        image_shape=(8, 8, 3),
        patch_size=4,
        num_layers=1,
        num_heads=2,
        hidden_dim=8,
        mlp_dim=12,
    )


def resnet():
    return models.ResNetBackbone(
        input_conv_filters=[64],
        input_conv_kernel_sizes=[3],
        stackwise_num_filters=[64],
        stackwise_num_blocks=[1],
        stackwise_num_strides=[2],
        block_type="basic_block",
        image_shape=(8, 8, 3),
    )


def pooled_bert(backbone, features):
    return backbone(features)["pooled_output"]


def first_of_vit(backbone, features):
    return backbone(features)[:, 0]


def mean_of_resnet(backbone, features):
    return ops.mean(backbone(features), axis=(1, 2))


BACKBONES = {
    "bert": (bert, pooled_bert, BERT_TEXT),
    "vit": (vit, first_of_vit, IMAGES),
    "resnet": (resnet, mean_of_resnet, IMAGES),
}
cross_entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def rows(nest, start):
    chosen = slice(start, start + BATCH)
    return keras.tree.map_structure(lambda array: array[chosen], nest)


def input_fn_of(features, labels=None):
    def input_fn(params):
        data = features if labels is None else (features, labels)
        for start in range(0, COUNT, BATCH):
            yield rows(data, start)

    return input_fn


def classifying(make, pooled):
    """A model_fn with a backbone and a layer."""

    def model_fn(features, labels, mode, params):
        logits = layers.Dense(CLASSES, name="logits")(pooled(make(), features))
        if mode == kte.ModeKeys.PREDICT:
            return kte.TPUEstimatorSpec(mode, predictions={"logits": logits})
        loss = cross_entropy(labels, logits)
        optimizer = kte.CrossShardOptimizer(keras.optimizers.Adam(0.01))
        train_op = None
        if mode == kte.ModeKeys.TRAIN:
            train_op = optimizer.minimize(loss)
        return kte.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    return model_fn


def values_of(estimator):
    names = estimator.get_variable_names()
    return {name: estimator.get_variable_value(name) for name in names}


def stacked(predictions, name):
    return np.stack([each[name] for each in predictions])


@pytest.mark.parametrize("name", BACKBONES)
def test_backbones_in_a_model_fn(name, tmp_path):
    """Training on eight cores, continued by a second estimator, equals one training."""
    make, pooled, features = BACKBONES[name]
    model_fn = classifying(make, pooled)
    whole, part, resumed = (
        estimator_of(model_fn, tmp_path / folder, use_tpu=True, iterations=1)
        for folder in ("whole", "parts", "parts")
    )
    data = input_fn_of(features, CLASS)
    whole.train(data, steps=STEPS)
    part.train(data, steps=1)
    resumed.train(
        lambda params: itertools.islice(data(params), 1, None), steps=STEPS - 1
    )
    expected, values = values_of(whole), values_of(resumed)
    assert values.keys() == expected.keys()
    for path, value in values.items():
        np.testing.assert_array_equal(value, expected[path], err_msg=path)
    logits = stacked(resumed.predict(input_fn_of(features)), "logits")
    loss = resumed.evaluate(data, steps=STEPS)["loss"]
    np.testing.assert_allclose(loss, cross_entropy(CLASS, logits), 1e-5)


def bert_classifier():
    return models.BertTextClassifier(bert(), CLASSES, dropout=0.0)


def bert_classifier_with_lora():
    classifier = bert_classifier()
    classifier.backbone.enable_lora(2)
    return classifier


def resnet_classifier():
    return models.ImageClassifier(resnet(), CLASSES)


def gpt2_causal_lm():
    return models.GPT2CausalLM(gpt2())


def gpt2_causal_lm_with_lora():
    model = gpt2_causal_lm()
    model.backbone.enable_lora(2)
    return model


NEXT = np.roll(TOKENS, -1, axis=1)
TASKS = {
    "bert": (bert_classifier, BERT_TEXT, CLASS),
    "bert with lora": (bert_classifier_with_lora, BERT_TEXT, CLASS),
    "resnet": (resnet_classifier, IMAGES, CLASS),
    "gpt2": (gpt2_causal_lm, GPT2_TEXT, NEXT),
    "gpt2 with lora": (gpt2_causal_lm_with_lora, GPT2_TEXT, NEXT),
}


def compiled(make):
    keras.utils.set_random_seed(5)
    model = make()
    model.compile(keras.optimizers.SGD(0.5), cross_entropy, metrics=["accuracy"])
    return model


@pytest.mark.parametrize("name", some_slow(TASKS, ["bert", "gpt2 with lora"]))
def test_tasks_match_keras(name, tmp_path):
    make, features, labels = TASKS[name]
    model, own = compiled(make), compiled(make)
    before = own.get_weights()
    sizes = ("train_batch_size", "eval_batch_size", "predict_batch_size")
    estimator = kte.from_keras(
        model,
        model_dir=tmp_path,
        # Each core normalizes with its own moments.
        use_tpu=name != "resnet",
        **dict.fromkeys(sizes, BATCH),
    )
    data = input_fn_of(features, labels)
    estimator.train(data, steps=STEPS)
    own.fit(features, labels, BATCH, verbose=0, shuffle=False)

    is_trained = {each.path for each in model.trainable_variables}
    pairs = zip(model.weights, own.weights, before, strict=True)
    for of_model, variable, old in pairs:
        value = estimator.get_variable_value(of_model.path)
        np.testing.assert_allclose(
            *(value, variable.numpy(), 1e-3, 1e-5), err_msg=of_model.path
        )
        if of_model.path not in is_trained and "moving" not in of_model.path:
            np.testing.assert_array_equal(value, old)
    expected = own.evaluate(features, labels, BATCH, verbose=0, return_dict=True)
    result = estimator.evaluate(data, steps=STEPS)
    for metric, value in expected.items():
        np.testing.assert_allclose(result[metric], value, 1e-4, err_msg=metric)
    predictions = list(estimator.predict(input_fn_of(features)))
    (key,) = predictions[0]
    np.testing.assert_allclose(
        stacked(predictions, key),
        own.predict(features, BATCH, verbose=0),
        *(1e-3, 1e-4),
    )


def test_tied_weights_are_one_variable(tmp_path):
    estimator = kte.from_keras(
        compiled(gpt2_causal_lm),
        model_dir=tmp_path,
        use_tpu=False,
        train_batch_size=BATCH,
    )
    estimator.train(input_fn_of(GPT2_TEXT, NEXT), steps=1)
    shapes = [np.shape(value) for value in values_of(estimator).values()]
    assert shapes.count((VOCABULARY, SIZES["hidden_dim"])) == 1


def test_lora_trains_only_adapters_in_a_model_fn(tmp_path):
    def adapted():
        backbone = bert()
        backbone.enable_lora(2)
        return backbone

    model_fn = classifying(adapted, pooled_bert)
    estimator = estimator_of(model_fn, tmp_path, use_tpu=True, iterations=1)
    before, after = (one_more_step(estimator) for _ in range(2))
    moved = {
        path for path, value in before.items() if not np.array_equal(value, after[path])
    }
    # KerasHub freezes the kernels of adapted layers, but not their biases.
    trained = re.compile("logits/|(query|value)/(bias|lora_kernel_[ab])$")
    assert moved == set(filter(trained.search, before))


def one_more_step(estimator):
    """The weights after one more step."""
    estimator.train(input_fn_of(BERT_TEXT, CLASS), steps=1)
    return {
        path: value
        for path, value in values_of(estimator).items()
        if not path.startswith(("adam/", "global_step"))
    }
