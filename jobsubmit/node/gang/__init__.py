"""The processes behind a local job; standard library only, started with `python -I -S`, for start-up time.

    keeper ── supervisor ── one leader a node (bash start.sh → exec launcher) ── ranks

The keeper outlives a killed supervisor to clean up; the supervisor starts the nodes, watches, ends the gang and writes
status.json; the hook in every Python process of a node reports ranks, exit codes and exceptions to events.jsonl.
"""
