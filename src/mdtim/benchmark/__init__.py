"""The paper's experiments: a grid of cells, each one row of a results file."""
