"""What is in a store of fake hosts."""


def said(store):
    """The keys of what is said in conversations."""
    return [key for key in store.values if key.startswith("kte/said/")]
