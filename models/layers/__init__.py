"""What a decoder is made of, by names and sizes, without weights."""
