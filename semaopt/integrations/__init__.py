"""Integrations with scikit-learn and Lightning; each module imports its library, so none is imported here."""
