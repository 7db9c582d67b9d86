"""Exporters' decompositions, seen again as the one call that they came from."""
