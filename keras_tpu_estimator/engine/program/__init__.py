"""A program: variables by path, and pure steps over them."""
