"""The method: the model, its initial weights, its optimizer and its schedule."""
