"""Failures of what is installed on the nodes."""

from __future__ import annotations

from jobsubmit.backends.shared.known_failures.known_failure import KnownFailure

# No other exception comes later, unless it was raised because of this one.
_LAST = r"(?!(?:(?!During handling of|direct cause of)[\s\S])*Traceback \(most recent)"
ROWS = (
    KnownFailure(
        r"jobsubmit: the setup ended with exit code (\d+)",
        "the job's `setup` failed with exit code {0}, before the training started",
        "see its output above; to try it, run in the code directory: bash -e -o pipefail -c 'LINES'",
    ),
    KnownFailure(
        r"jobsubmit: the packages could not be installed",
        "a package of the job's `requirements` could not be installed on the node",
        "see the output of pip for which one; correct its name or version, or check that the node reaches the package "
        "index",
    ),
    KnownFailure(
        rf"No module named '((torch|numpy|transformers|timm|lightning|pytorch_lightning)\.[\w.]+){_LAST}",
        "the installed {1} has no module {0}",
        "the code that imports it was written for another version of {1}: name that version in the file that "
        "`requirements` names; if another package imports it, install a newer version of that package",
    ),
    KnownFailure(
        rf"(?:ModuleNotFoundError|ImportError|python[\d.]*): No module named '?([\w.-]+){_LAST}",
        "the module {0} was not found on the node",
        "add it to the file that `requirements` names, or install it for the Python of the nodes; a module of your own "
        "must be in code_dir: `jobsubmit bundle --list` shows what is uploaded",
    ),
    KnownFailure(
        r"Error: .*?\b([\w.-]+)[`']? (?:to be installed|is not installed|was not found on your system)",
        "the package {0} is not installed on the node",
        "add it to the file that `requirements` names, or install it for the Python of the nodes; if it is a tracker "
        "of transformers that you do not need, pass report_to=none",
    ),
    KnownFailure(
        r"cannot import name '([^']+)' from (?:partially initialized module )?'([^']+)'",
        "the module {1} has no {0}",
        "if the module belongs to a library, install versions that fit together: `pip check` lists those that do not; "
        "if it is your own, correct the name, or check for a circular import",
    ),
    KnownFailure(
        r"TypeError: (?:\w+\.)*?(\w+)(?:\.__init__)?\(\) got an unexpected keyword argument '(\w+)'",
        "{0} has no argument {1}",
        "if {0} belongs to a library, the installed version is not the one that the code was written for: name that "
        "version in the file that `requirements` names, or remove the argument",
    ),
    KnownFailure(
        r"TypeError: (?:\w+\.)*?(\w+)(?:\.__init__)?\(\) takes (\d+) positional arguments? but (\d+) (?:was|were) "
        r"given",
        "{0} takes at most {1} of its arguments without a name, and gets {2}",
        "if {0} belongs to a library, the installed version is not the one that the code was written for: pass the "
        "arguments by their names, or name that version in the file that `requirements` names",
    ),
    KnownFailure(
        r"stft requires the return_complex parameter",
        "torch 2 refuses torch.stft() of real numbers without return_complex",
        "pass return_complex=True, and use torch.view_as_real() on the result where the code expects pairs of real "
        "numbers",
    ),
    KnownFailure(
        r"AttributeError: type object '(\w+)' has no attribute '(\w+)'",
        "the class {0} has no {1}",
        "if {0} belongs to a library, the installed version is not the one that the code was written for: name that "
        "version in the file that `requirements` names; if it is your own, correct the name",
    ),
    KnownFailure(
        r"raise AttributeError\(name\)[^\n]*\n\S*AttributeError: (\w+)",
        "an Enum has no member {0}",
        "if it belongs to a library, the installed version is not the one that the code was written for: name that "
        "version in the file that `requirements` names; if it is your own, correct the name",
    ),
    KnownFailure(
        r"module 'numpy' has no attribute '(float|int|bool|object|str)'",
        "the code uses np.{0}, which NumPy 1.24 removed",
        "write the type of Python instead, or install numpy<1.24",
    ),
    KnownFailure(
        r"AttributeError: module '([\w.]+)' has no attribute '(\w+)'",
        "the module {0} has no {1}",
        "if {0} belongs to a library, the installed version is not the one that the code was written for: name that "
        "version in the file that `requirements` names; if it is your own, correct the name, or check for a file of "
        "the same name",
    ),
    KnownFailure(
        r"undefined symbol: ",
        "a compiled package does not fit the installed torch",
        "install a build of the package for this version of torch, or build it again on the nodes",
    ),
    KnownFailure(
        r"(lib[\w.+-]+\.so[\w.]*): cannot open shared object file",
        "the library {0} is not installed on the node",
        "install it in the image or in `setup`; instead of opencv-python, opencv-python-headless needs no libGL",
    ),
    KnownFailure(
        r"Requirement '([\w.-]+)[^']*' not met",
        "the package {0} is not installed on the node, or its version is too old",
        "install it for the Python of the nodes, or name it in the file that `requirements` names",
    ),
    KnownFailure(
        r"numpy\.dtype size changed|compiled using NumPy 1\.x cannot be run|_ARRAY_API not found",
        "a package was built for another version of NumPy",
        "install a newer build of the package, or an older NumPy (numpy<2)",
    ),
    KnownFailure(
        r"_execute_child[\s\S]*FileNotFoundError: \[Errno 2\] No such file or directory: '([^'/]+)'",
        "the program {0} is not installed on the node",
        "install it in the image or in `setup`, or remove what starts it",
    ),
    KnownFailure(
        r"CUDA_HOME environment variable is not set",
        "an extension is built on the node, which has no CUDA compiler",
        "use an image with the CUDA toolkit (nvcc), or install the package already built",
    ),
    KnownFailure(
        r"Failed to find C compiler|InductorError: FileNotFoundError|No working C\+\+ compiler found",
        "torch.compile needs a C compiler, and the node has none",
        'install gcc in the image; to train without torch.compile, set env: {TORCHDYNAMO_DISABLE: "1"}',
    ),
)
