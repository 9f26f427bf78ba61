"""Test beds with known constants."""
