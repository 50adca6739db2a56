"""From a panel to a fitted network: training, what it is taught on, and how it is judged."""
