"""Time what a training process does with its gradients; the hook of the gang installs it in every rank.

Standard library only, and torch only where the process itself has loaded it. Whatever goes wrong in here is told once
and ends the timing, never the training.
"""
