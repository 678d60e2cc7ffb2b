"""Stands for scikit-learn in the processes that tests start.

Keras imports it if it is there, which takes a third of the time of a start.
"""

raise ImportError("The processes that tests start go without scikit-learn.")
