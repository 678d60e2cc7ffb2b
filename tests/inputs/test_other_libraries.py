"""Tests of `input_fn`s that use PyTorch or Hugging Face."""

import subprocess
import sys
import types

import ml_dtypes
import numpy as np
import pytest
from helpers import estimator_of, linear, model_fn_of, regression_data

import keras_tpu_estimator as kte
from keras_tpu_estimator.engine.inputs.batch import Batch
from keras_tpu_estimator.engine.inputs.request import Stream, source_of


def module(monkeypatch, name, *classes):
    """Makes a package with classes of these names."""
    made = types.ModuleType(name)
    for kind, bases, attributes in classes:
        attributes = {"__module__": f"{name}.inner"} | attributes
        setattr(made, kind, type(kind, bases, attributes))
    monkeypatch.setitem(sys.modules, name, made)
    return made


def test_hugging_face_splits_are_refused(monkeypatch):
    datasets = module(monkeypatch, "datasets", ("DatasetDict", (dict,), {}))
    with pytest.raises(TypeError, match="contains several datasets. Select one"):
        source_of(datasets.DatasetDict(train=[1]))


@pytest.mark.parametrize("kind", ["Dataset", "IterableDataset"])
def test_hugging_face_rows_are_refused(kind, monkeypatch):
    rows = {"__iter__": lambda self: iter([{"x": 1}])}
    datasets = module(monkeypatch, "datasets", (kind, (), rows))
    dataset = getattr(datasets, kind)()
    with pytest.raises(TypeError, match=f"{kind}, which yields single exampl"):
        source_of(dataset)
    # The fix that the message gives.
    assert isinstance(source_of(iter(dataset)), Stream)


def test_pytorch_datasets_need_a_loader(monkeypatch):
    torch = module(
        monkeypatch,
        "torch",
        ("Dataset", (), {"__getitem__": lambda self, index: index}),
    )

    class Users(torch.Dataset):
        pass

    with pytest.raises(TypeError, match=r"Users.*DataLoader\(dataset, batch"):
        source_of(Users())

    class Iterable(Users):
        def __iter__(self):
            return iter([1])

    assert isinstance(source_of(Iterable()), Stream)


def test_datasets_of_other_libraries_are_streams(monkeypatch):
    mine = module(monkeypatch, "mine", ("Dataset", (), {"__iter__": lambda self: self}))
    module(monkeypatch, "datasets")
    assert isinstance(source_of(mine.Dataset()), Stream)


WITH_TORCH = """
import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset
import keras_tpu_estimator as kte
from keras_tpu_estimator.engine.inputs.batch import Batch
from keras_tpu_estimator.engine.inputs.request import source_of

values = torch.arange(6.0).reshape(3, 2)
batch = Batch.from_value((values.bfloat16(), values.clone().requires_grad_()))
assert str(batch.features.dtype) == "bfloat16", batch.features.dtype
np.testing.assert_array_equal(batch.features.astype("float32"), values)
np.testing.assert_array_equal(batch.labels, values)
rows = TensorDataset(values, values)
try:
    source_of(rows)
except TypeError as error:
    assert "DataLoader" in str(error), error
source = source_of(DataLoader(rows, batch_size=2))
sizes = [source.batch(item).size for item in source.items()]
assert sizes == [2, 1], sizes
"""


def test_pytorch_tensors_are_arrays():
    pytest.importorskip("torch", reason="PyTorch takes gigabytes")
    subprocess.run([sys.executable, "-c", WITH_TORCH], check=True)


def test_bfloat16_tensors_are_read_by_their_bits(monkeypatch):
    """PyTorch tensors of bfloat16 cannot become NumPy arrays, nor can this stand-in."""

    class Tensor:
        __module__ = "torch"
        dtype = "bfloat16"

        def __init__(self, values):
            self.values = values

        def detach(self):
            return self

        cpu = detach

        def view(self, dtype):
            return Tensor(self.values.view(dtype))

        def numpy(self):
            assert self.values.dtype == np.int16
            return self.values

    torch = types.SimpleNamespace(bfloat16="bfloat16", int16=np.int16)
    monkeypatch.setitem(sys.modules, "torch", torch)
    values = np.array([[1.5], [-2.0]], ml_dtypes.bfloat16)
    batch = Batch.from_value({"x": Tensor(values)})
    assert batch.features["x"].dtype == values.dtype
    np.testing.assert_array_equal(batch.features["x"], values)


@pytest.mark.parametrize("name", ["label", "targets"])
def test_error_notes_labels_among_the_features(name, tmp_path):
    x, y = regression_data(16)
    estimator = estimator_of(
        model_fn_of(lambda x, training: linear(x["x"], training)), tmp_path
    )
    with pytest.raises((TypeError, ValueError)) as caught:
        estimator.train(lambda params: iter([{"x": x, name: y}]), steps=1)
    (note,) = [n for n in caught.value.__notes__ if "`labels` is None" in n]
    assert f"batch.pop({name!r})" in note


def test_pairs_are_made_as_the_message_advises(tmp_path):
    x, y = regression_data(16)
    batches = [{"x": x[:8], "label": y[:8]}, {"x": x[8:], "label": y[8:]}]
    estimator = estimator_of(
        model_fn_of(lambda x, training: linear(x["x"], training)), tmp_path
    )
    estimator.train(lambda params: ((batch, batch.pop("label")) for batch in batches))
    assert estimator.get_variable_value("global_step") == 2
    assert kte.latest_checkpoint(tmp_path).endswith("-2")
