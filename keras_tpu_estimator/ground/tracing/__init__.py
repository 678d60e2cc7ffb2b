"""Running code of variables under a trace, as pure functions of them."""
