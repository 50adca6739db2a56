"""What is said of cells without a network: lines, relations, dynamics, seasons, rows."""
