"""FID and KID as losses over clients' messages: a toy and a GAN on digits."""
