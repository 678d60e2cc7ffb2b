"""Compiled Keras models as estimators."""
