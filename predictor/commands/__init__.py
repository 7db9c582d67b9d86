"""One module a family of commands; `predictor.cli` puts them together."""
