"""Programs of TF1 are run, and not looked through for examples."""

collect_ignore = ["programs"]
