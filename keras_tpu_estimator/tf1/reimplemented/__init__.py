"""Removed TF1 functions and classes, written in TF1 ops.

A module is imported when one of its names is used, and other modules do not import it.
Therefore these modules may import TensorFlow.
"""
