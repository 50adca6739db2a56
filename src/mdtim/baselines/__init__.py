"""Systems to compare with, behind one protocol."""
