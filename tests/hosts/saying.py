"""The contents of the store of fake hosts."""


def said(store):
    """Returns the keys of exchanges."""
    return [key for key in store.values if key.startswith("kte/agreed/")]
