"""Losses over clients that keep their images: questions, summable answers, messages sent once."""
