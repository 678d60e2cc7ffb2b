"""What users set: the configuration, the cluster, and their checks."""
