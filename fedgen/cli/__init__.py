"""Commands of `fedgen`, one file each, and the server whose forks train (`fit_server`)."""
