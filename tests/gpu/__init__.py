"""What a GPU computes beside what a CPU does. All but what only GPUs have runs on a CPU, too."""
