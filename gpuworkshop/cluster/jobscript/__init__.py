"""A checker of job scripts that knows Slurm. `check.run` reads a file; its rules are data in rules.toml.

text.py and script.py read the file as sbatch does, shell.py its commands, options.py its options; request.py makes
numbers of them, launch.py says how the training is started. The rules_*.py look, and rules.toml has their words.
"""
