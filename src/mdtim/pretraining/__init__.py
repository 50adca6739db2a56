"""Made-up tables, and a network trained on them that needs no table of its own."""
