"""Follow a program from its first line on, with the values that it has in this job; nothing of it is executed.

Every expression gets the value that it has each time it is evaluated, as far as that is known. Where a condition is not
known, both branches are followed, and what they leave behind is joined.
"""
