"""Java's and Scala's rules: text order, hashes, JSON dialects, regular expressions."""
