"""What a job really does: each module is one measuring instrument."""
