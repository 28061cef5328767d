"""Scripts on machines that share no disk with the run: parcels that travel, and a Ray cluster that carries them."""
