"""What became of a job's time: its phases, what each step of its training spent on what, and how two jobs compare."""
