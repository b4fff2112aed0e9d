"""What is here: the cards and the CPUs that this process may use."""
