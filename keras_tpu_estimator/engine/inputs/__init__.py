"""What happens between a user's `input_fn` and the devices."""
