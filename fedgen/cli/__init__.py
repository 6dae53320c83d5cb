"""Commands of `fedgen`, and the server whose forks train (`fit_server`)."""
