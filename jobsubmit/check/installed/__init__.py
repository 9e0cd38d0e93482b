"""What the libraries define that are installed for the Python of the nodes. Their files are read, and none is run."""
