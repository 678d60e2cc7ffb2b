"""The conversion of a TF1 graph to a step that devices run."""
