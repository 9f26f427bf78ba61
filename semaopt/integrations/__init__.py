"""Integrations with scikit-learn, Lightning and Hugging Face.

Each module imports its library, so none is imported here.
"""
