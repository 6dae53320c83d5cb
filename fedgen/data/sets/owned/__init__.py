"""Data sets that say whose each example is: `Examples.owners`, which `Natural` makes clients of."""
