"""Speed: step time, tokens per second, memory."""
