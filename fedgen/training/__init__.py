"""`fedgen fit`: the command line of Lightning, run folders and resuming."""
