"""Importers, one a public source."""
