"""Chat templates: programs of strangers that write conversations as a model learned them."""
