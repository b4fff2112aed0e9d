"""What is here: the cards, CPUs, memory and disk that this process may use, and the page that shows its output."""
