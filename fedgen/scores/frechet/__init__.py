"""The Frechet distance (FID): pooled and per client, errors, extrapolation to infinitely many images."""
