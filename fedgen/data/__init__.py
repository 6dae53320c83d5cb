"""Data sets: labelled images or points in memory."""

from fedgen.data.dataset import DataSet
from fedgen.data.digits import Digits
from fedgen.data.examples import Examples

__all__ = ["DataSet", "Digits", "Examples"]
