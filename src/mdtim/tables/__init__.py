"""Tables of any kind and files to a regular panel and back: columns, times, text."""
