"""Commands of `fedgen` beside `fit`, one file each."""
