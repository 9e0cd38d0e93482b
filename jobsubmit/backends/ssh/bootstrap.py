"""Runs on a host, as text, before anything of jobsubmit is there: unpack the agent once, and let it answer questions.

The input continues with a line of JSON: {"root", "mark", "agent", "size"}, then the agent archive if `size` is not 0,
and then the questions. After the mark, the output is the answers; what a login shell prints before it is ignored.
"""

import json
import os
import sys

if __name__ == "__main__":
    stream = sys.stdin.buffer
    header = json.loads(stream.readline().decode())
    root = os.path.abspath(os.path.expanduser(header["root"]))
    agents = os.path.join(root, "cache", "agents")
    folder = os.path.join(agents, header["agent"])
    packed = stream.read(header["size"])
    sys.stdout.write("\n" + header["mark"] + "\n")
    sys.stdout.flush()
    os.umask(0o077)
    if sys.version_info < (3, 8):
        error = "its python3 is %d.%d, and 3.8 or later is needed" % sys.version_info[:2]
        print(json.dumps({"error": error, "hint": "install a newer Python there, as python3 on the PATH"}))
        sys.exit()
    if not os.path.isdir(root):
        os.makedirs(root, 0o700)
    for place, writers in ((root, 0o002), (os.path.dirname(agents), 0o022), (agents, 0o022), (folder, 0o022)):
        if os.path.exists(place) and (os.stat(place).st_uid != os.getuid() or os.stat(place).st_mode & writers):
            error = "%s belongs to somebody else, or others can write to it" % place
            print(json.dumps({"error": error, "hint": "set backend.workdir to a folder that only you can write to"}))
            sys.exit()
    if not os.path.isdir(folder):
        if not packed:
            print(json.dumps({"needs_agent": True}))
            sys.exit()
        import io
        import shutil
        import zipfile

        new = "%s.%d" % (folder, os.getpid())
        try:
            os.makedirs(new)
            zipfile.ZipFile(io.BytesIO(packed)).extractall(new)
            os.rename(new, folder)
        except OSError as error:
            shutil.rmtree(new, ignore_errors=True)
            if not os.path.isdir(folder):  # another client was faster
                print(json.dumps({"error": "%s: %s" % (root, error.strerror or error)}))
                sys.exit()
    sys.path.insert(0, folder)
    sys.dont_write_bytecode = False
    from jobsubmit.agent.entrypoints import host

    sys.exit(host.serve(stream, root))
