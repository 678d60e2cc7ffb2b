"""What users set: the configuration, and its checks."""
