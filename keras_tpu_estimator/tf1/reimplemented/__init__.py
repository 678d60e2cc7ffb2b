"""What neither TensorFlow nor its offspring have, written in ops of TF1.

Modules are imported when a name of theirs is used, never by others, so they
may import TensorFlow themselves.
"""
