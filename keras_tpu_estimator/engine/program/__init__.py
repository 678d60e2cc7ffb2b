"""What a program is: variables by path, and pure steps over them."""
