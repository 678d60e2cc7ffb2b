"""RecompiledModel Keras models as estimators."""
