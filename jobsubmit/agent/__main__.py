"""Unpack this program, which is one zip file, into a temporary folder, and run it: `python3 agent.pyz COMMAND …`."""

import os
import sys
import tempfile
import zipfile

source = os.path.dirname(os.path.abspath(__file__))
with tempfile.TemporaryDirectory(prefix="jobsubmit-") as folder:
    # The hook inside the training processes is loaded by path, so the program must lie in files.
    with zipfile.ZipFile(source) as program:
        program.extractall(folder)
    sys.path.insert(0, folder)
    from jobsubmit.agent.entrypoints.main import main

    code = main()
sys.exit(code)
