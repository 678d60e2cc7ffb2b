"""Foundations, which are independent of estimators."""
