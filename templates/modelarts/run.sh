#!/usr/bin/env bash
# Start one node of a job on ModelArts: `run.sh SCRIPT`, the name of a start script in the folder above.
# The agent beside this file runs it, separates the lines of its ranks, and reports which of them failed first and why.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
script="${here%/*}/$1"
if [[ -n ${JOBSUBMIT_REQUEST:-} ]] && python -c 'import sys; sys.exit(sys.version_info < (3, 8))'; then
  exec python -I -S "${here}/agent.pyz" task "${script}"
fi
printf 'jobsubmit: no python of 3.8 or newer, or no JOBSUBMIT_REQUEST: the output of its ranks is not separated\n' >&2
exec bash "${script}"
