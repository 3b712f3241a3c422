"""Commands that leave a process behind, which keeps their share."""

from __future__ import annotations

import sys
from pathlib import Path

# Forks twice, leaves the session and closes everything that it inherited, as daemons do; then says its pid.
_DAEMON = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    os.closerange(3, 4096)
    with open(sys.argv[1] + ".tmp", "w") as told:
        told.write(str(os.getpid()))
    os.rename(sys.argv[1] + ".tmp", sys.argv[1])
    time.sleep(600)
"""
# Closes every file that it may have inherited, without a word of the share in its environment, and says its pid.
STRANGER = """
exec 3>&- 4>&- 5>&- 6>&- 7>&- 8>&- 9>&- > /dev/null 2>&1
echo $$ > "$0.tmp"; mv "$0.tmp" "$0"; exec sleep 600
"""


def starting(told: Path, afterwards: str) -> tuple[str, ...]:
    """A command that leaves a daemon behind, and then does something else."""
    script = 'python=$1; daemon=$2; told=$3; "$python" -c "$daemon" "$told" > /dev/null 2>&1; '
    script += f'while [ ! -e "$told" ]; do sleep 0.01; done; {afterwards}'
    return ("sh", "-c", script, "sh", sys.executable, _DAEMON, str(told))


def starting_stranger(told: Path, afterwards: str) -> tuple[str, ...]:
    """A command that leaves a process without lock and environment behind, and then does something else."""
    script = f'env -i setsid sh -c "$0" "$1" & while [ ! -e "$1" ]; do sleep 0.01; done; {afterwards}'
    return ("sh", "-c", script, STRANGER, str(told))
