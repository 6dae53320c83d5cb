"""The server of a deployment: clients known by their messages, rounds and evaluations."""
