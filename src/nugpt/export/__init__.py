"""Models as folders that `transformers` loads, and back."""
