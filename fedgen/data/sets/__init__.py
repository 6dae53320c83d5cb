"""Data sets by name, one file each; those that say whose each example is are in `owned`."""
