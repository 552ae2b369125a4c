"""Finds checkpoints, and checks that their tokenizers fit the models."""
