"""What runs the steps: on the devices, and on the host beside them."""
