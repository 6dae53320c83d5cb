"""Quality by the communication interval, for two kinds of generators."""
