"""Where it runs: the facts of a site, and what its Slurm says about itself."""
