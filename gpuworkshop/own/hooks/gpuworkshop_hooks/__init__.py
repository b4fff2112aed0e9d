"""What watches a training script from inside: only Python's own library (3.9 or newer), and the script's own torch.

The folder above is put on the script's PYTHONPATH. `sitecustomize` there calls `wake.get_ready`, which costs nothing
until torch is imported. From then on the hooks note what the program does, measure blocks of its steps, and write
records as JSON lines into the folder that $GPUWORKSHOP_OWN names. All arithmetic on them is done outside.
"""
