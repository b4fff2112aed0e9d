"""GPU workshop: a course and the instruments behind it; every claim is measured on the machine at hand."""

__version__ = "0.1.0"
