"""Results: data model, statistics, verdicts on claims, records and tables."""
