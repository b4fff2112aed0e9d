"""What to do next: the ledger, the diagnosis, the remedies, and the loop over them."""
