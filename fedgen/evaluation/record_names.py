"""The names that records carry: of splits and of aggregates, and notes that readers tell runs by."""

SELECT, REPORT = "train", "report"
PART_TRAIN, PART_VAL, UNPART = "part_train", "part_val", "unpart"
HELD_OUT = (REPORT, PART_VAL, UNPART)  # of images that no training has seen
AGGREGATES = ("avg", "all", "worst")
POWER = "power-"
PERCENTILES = {f"pct{q}": q for q in (95, 75, 50, 25, 5)}
DISTRIBUTION = ("unweighted", "var", *PERCENTILES)
"""Of the clients' scores, each client once: mean, variance (divisor K), and percentiles that occur ("nearest"), as
section 3 and appendix C of Yuan et al. 2022 (arXiv 2110.14216) have them."""
LOCAL_NOTE = "mixture of local models"
