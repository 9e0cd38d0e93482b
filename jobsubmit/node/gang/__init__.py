"""The processes behind a job: all its nodes on one machine (the local backend), or one node of it (see agent.py).

Standard library only; locally started with `python -I -S`, for start-up time.

    keeper ── supervisor ── one leader a node (bash start.sh → exec launcher) ── ranks

The keeper outlives a killed supervisor to clean up; the supervisor starts the nodes, watches, ends the gang and writes
status.json; the hook in every Python process of a node reports ranks, exit codes and exceptions to events.jsonl.
"""
