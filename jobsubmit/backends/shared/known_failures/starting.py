"""Failures before the training starts: code, rendezvous, arguments."""

from __future__ import annotations

from jobsubmit.backends.shared.known_failures.known_failure import KnownFailure

ROWS = (
    KnownFailure(
        r"code could not be fetched: .*(?:is not the file that was|Compressed file|[Tt]he archive|manifest in the store"
        r"|than .*promised|Not a gzipped|CRC check failed|[Ee]rror -3 while|invalid header"
        r"|start script in the store differs)",
        "the stored files differ from the upload",
        "submit the job with `jobsubmit create`, which uploads every file again (rerun does not); if code_dir is in a "
        "bucket, upload it again: jobsubmit upload DIR URI --recheck",
    ),
    KnownFailure(
        r"code could not be fetched: .*CERTIFICATE_VERIFY_FAILED",
        "the node does not trust the store's certificate",
        "set store.ca_bundle (--ca-bundle for `upload`) to the certificate file of the authority that signed it",
    ),
    KnownFailure(
        r"Timed out after \d+ seconds waiting for clients\. (\d+)/(\d+) clients joined",
        "only {0} of {1} processes joined",
        "compare resources.nodes with what started: a node or a process is missing, or the job expects too many",
    ),
    KnownFailure(
        r"rank < size\. (\d+) vs (\d+)",
        "rank {0} joined a process group of only {1} processes",
        "pass the number of all processes as world_size: the nodes of the job times the processes of each; Lightning "
        "computes it from num_nodes and devices of its Trainer",
    ),
    KnownFailure(
        r"You set `devices=(\d+)` and `num_nodes=(\d+)` in Lightning, but .* the world size \((\d+)\)",
        "Lightning's Trainer expects devices={0} on each of {1} nodes, but the job has {2} processes",
        "pass devices and num_nodes as resources say, for example from LOCAL_WORLD_SIZE and NNODES in the environment",
    ),
    KnownFailure(
        r"wait timeout.*keys: /default_pg/\d+//\w+//\d+/(\d+)",
        "rank {0} never joined the process group",
        "check the log of that rank; if there is none, two processes may have the same rank",
    ),
    KnownFailure(
        r"Expected: \d+, Got: 1347703880",
        "an HTTP server answered on the port of the first node",
        "submit the job again: on the local backend and on Slurm it then uses another port; if that does not help, "
        "find the program that uses this port on the first node, or the proxy between the nodes",
    ),
    KnownFailure(
        r"EADDRINUSE|[Aa]ddress already in use|failed to listen on any local network address",
        "a port is already in use",
        "if it is the port of the rendezvous, another job uses it, or two processes both run as rank 0; else find the "
        "program that uses it: ss -ltnp",
    ),
    KnownFailure(
        r"Max retries exceeded with url|urlopen error|LocalEntryNotFoundError|couldn't connect to 'https?://"
        r"|Couldn't find (?:a module script|any data file) at|doesn't exist on the (?:Hugging Face )?Hub"
        r"|Couldn't reach (?:https?:|\S+ on the Hub)",
        "a download failed: the node does not reach the server",
        "if the nodes have no access to the internet, download it into a folder here before; for Hugging Face, add to "
        'the job file inputs: [{name: HF_HOME, uri: FOLDER, as: env}] and env: {HF_HUB_OFFLINE: "1"}, for torch.hub '
        "the same with TORCH_HOME",
    ),
    KnownFailure(
        r"network addresses of \(([^,]+), \d+\) cannot be retrieved|gaierror|Name or service not known"
        r"|Temporary failure in name resolution",
        "a host name cannot be resolved",
        "see its last lines for the name: if it is a node, check /etc/hosts and DNS there (getent hosts NAME); if it "
        "is a server, check whether the nodes have access to the internet",
    ),
    KnownFailure(
        r"client socket has timed out .*connect to \(([^,]+), (\d+)\)",
        "no connection to rank 0 at {0}, port {1}",
        "check the log of node 0: rank 0 did not start, or cannot be reached",
    ),
    KnownFailure(
        r"connectFullMesh failed.*remote=\[127\.",
        "a node's own name resolves to a loopback address, so the other nodes cannot reach it",
        "correct /etc/hosts on that node, or set GLOO_SOCKET_IFNAME to the interface between the nodes",
    ),
    KnownFailure(
        r"GatedRepoError|RepositoryNotFoundError|Cannot access gated repo",
        "Hugging Face refused access to a model or a data set",
        'accept its terms with your account, and pass your token: secrets: {HF_TOKEN: "env:HF_TOKEN"}',
    ),
    KnownFailure(
        r"api_key not configured \(no-tty\)|UsageError: No API key configured",
        "wandb needs a key, and a node has no terminal to ask for it",
        'pass the key: secrets: {WANDB_API_KEY: "env:WANDB_API_KEY"}; or set WANDB_MODE=offline in `env`',
    ),
    KnownFailure(
        r"EOFError: EOF when reading a line",
        "the code asks for input, and a node has no terminal",
        "pass the answer as an argument of the boot file",
    ),
    KnownFailure(
        r"exec: ([^:\n]+): not found|: ([^:\s]+): command not found",
        "a program that the command starts is not on the node",
        "correct its name, or install it in the image or in `setup`",
    ),
    KnownFailure(
        r"line \d+: (\S+): Permission denied",
        "{0} may not be executed on the node",
        "make it executable (chmod +x) and upload it again, or start it with bash",
    ),
    KnownFailure(
        r"trying to initialize the default process group twice",
        "init_process_group was called twice",
        "call it once; if a library may have called it, test torch.distributed.is_initialized() first",
    ),
    KnownFailure(
        r"Default process group has not been initialized",
        "the code used torch.distributed before init_process_group",
        "call torch.distributed.init_process_group() first, in each process: with mp.spawn, in the "
        "function that it starts",
    ),
    KnownFailure(
        r"environment variable (RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT) expected, but not set",
        "the boot file reads {0}, which only a launcher sets",
        "use mode: torchrun (or launch) with boot_file, and without `command`, which replaces the launcher; or have "
        "the boot file call mp.spawn and pass init_method, world_size and rank",
    ),
    KnownFailure(
        r"unrecognized arguments: .*--local[-_]rank",
        "the boot file does not accept --local-rank, which its launcher passes",
        "declare both --local-rank and --local_rank; or read LOCAL_RANK from the environment and keep the launcher "
        "from passing the argument: remove `local_rank: argument` from the job file, or use torchrun (in `command`: "
        "add --use_env)",
    ),
    KnownFailure(
        r"the following arguments are required: .*?--(world_size|rank|init_method)",
        "the boot file requires --{0}, which was not passed",
        "read it from the environment, which a launcher sets; only mode: spawn passes world_size, rank and init_method",
    ),
    KnownFailure(
        r"ambiguous option: (\S+) could match .*--(?:log-dir|log_dir|nnodes|run-path|run_path|rdzv|master|node)",
        "the launcher read {0}, an argument of the boot file, as one of its own",
        "write -- before the boot file in `command`: torchrun … -- train.py",
    ),
    KnownFailure(
        r"arguments are not used by the HfArgumentParser: \[(.+)\]",
        "the boot file does not accept the arguments {0}",
        "correct their names, or remove them from the job file; the installed version of transformers may have renamed "
        "an argument (evaluation_strategy is eval_strategy since 4.46)",
    ),
    KnownFailure(
        r"unrecognized arguments: (.+)",
        "the boot file does not accept the arguments {0}",
        "declare them in the boot file, or remove them from the job file (hyperparameters, args; inputs and outputs: "
        "as: env). Mode spawn itself adds --world_size, --rank and --init_method: declare these, or use mode: torchrun",
    ),
    KnownFailure(
        r"finished its bootstrapping phase|freeze_support\(\)",
        "the boot file starts processes as soon as it is imported",
        'move the code that starts them below: if __name__ == "__main__":',
    ),
)
