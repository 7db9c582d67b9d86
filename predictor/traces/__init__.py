"""Measured data: one schema, one importer a public source."""
