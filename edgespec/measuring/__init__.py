"""What a bundle does on this machine: its speed, its equality to plain decoding, its quality."""
