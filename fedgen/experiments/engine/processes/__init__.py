"""Processes that trainings run in: forks of a server that has imported the kit once, or each its own."""
