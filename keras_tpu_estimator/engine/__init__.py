"""Runs programs on devices, independently of the front end that traced them."""
