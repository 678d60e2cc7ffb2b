"""Variables of one model that start from the values of another's checkpoint."""
