"""The loop on a script of your own: watched from inside by hooks, judged, and given one change to make."""
