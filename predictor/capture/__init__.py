"""Front ends: a program in, the graph of its framework calls out."""
