"""Results: the data model, statistics, claims and loading."""
