"""Statements about the scores that need no data: closed forms, toys, and the error and speed of matrix roots."""
