"""The maker of the slides: reads the Markdown sources, resolves what they ask for, and prints."""
