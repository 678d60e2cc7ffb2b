"""A program on the devices: its values, its model and its loop."""
