#!/bin/sh
# setup.sh [EXTRAS]: make .venv with randq and the named extras ("dev", "dev,atari") in it, at the
# versions of constraints.txt; do nothing when that is done. PYTHON names the interpreter to use.
# Every failure ends with one sentence on standard error that says what to do.
set -u
export LC_ALL=C
cd "$(dirname "$0")/.." || exit 1
extras=${1:-}
here=$(pwd -P)

fail() {
    echo "setup: $1" >&2
    exit 1
}

# explain STEP OUTPUT: a step failed; keep what it printed and name the likely cause.
explain() {
    log=.venv/setup.log
    [ -d .venv ] || log=$(mktemp)
    printf '%s\n' "$2" 2>/dev/null >"$log"
    case $2 in
    *"No space left"* | *"Errno 28"* | *"quota exceeded"*)
        fail "the disk is full: free 2 GB in $here and in ${TMPDIR:-/tmp}, then run the command again." ;;
    *"Permission denied"* | *"Read-only file system"*)
        fail "$1 for want of a right to write in $here: give yourself that right, then run the command again (log: $log)." ;;
    *"new connection"* | *"onnection refused"* | *"name resolution"* | *"timed out"* | *"unreachable"* | \
        *"ProxyError"* | *"SSLError"* | *"onnection aborted"* | *"onnection broken"*)
        fail "$1 for want of a download: check the network and pip's own settings, then run the command again (log: $log)." ;;
    esac
    reason=$(printf '%s\n' "$2" | sed -n '/ResolutionImpossible/d; s/^ERROR: *//p' | tail -n 1)
    fail "$1${reason:+ (${reason%.})}: undo changes of pyproject.toml and constraints.txt if there are any, else report this with the log $log."
}

# probe PYTHON: print its version; status 1 when it is too old, nothing printed when it does not run.
probe() {
    "$1" -c 'import sys; v = sys.version_info; print("%d.%d.%d" % v[:3]); sys.exit(v < (3, 11))' 2>/dev/null
}

# .venv/.ready is written last. It says where .venv was made, from what, and with which extras.
wanted="$here|$(cksum <pyproject.toml)|$(cksum <constraints.txt)|"
ready=$(cat .venv/.ready 2>/dev/null)
fresh=yes
case $ready in "$here|"*) [ -x .venv/bin/python ] && fresh=no ;; esac
[ -n "${PYTHON:-}" ] && [ "$(probe "$PYTHON")" != "$(probe .venv/bin/python)" ] && fresh=yes
if [ $fresh = no ]; then
    [ "$ready" = "$wanted$extras" ] && exit
    case $ready in "$wanted"*) [ -z "$extras" ] && exit ;; esac
fi

[ -w . ] || fail "$here cannot be written to: give yourself the right to, or work in a copy of it."

if [ $fresh = yes ]; then
    set -- python3 python3.13 python3.12 python3.11
    [ -n "${PYTHON:-}" ] && set -- "$PYTHON"
    python='' old=''
    for candidate; do
        version=$(probe "$candidate") && python=$candidate && break
        [ -n "$version" ] && old="${old:-$candidate is Python $version}"
    done
    if [ -z "$python" ]; then
        [ -n "$old" ] && fail "$old, and 3.11 or newer is needed: install it, or name it with PYTHON=/path/to/python3."
        [ -n "${PYTHON:-}" ] && fail "PYTHON=$PYTHON does not run: name a Python of 3.11 or newer, or leave PYTHON out."
        fail "no Python was found: install 3.11 or newer, or name it with PYTHON=/path/to/python3."
    fi
    "$python" -c 'import ensurepip, venv' 2>/dev/null ||
        fail "Python $version lacks its venv module: install it (Debian, Ubuntu: apt install python${version%.*}-venv), then run the command again."
    echo "making .venv (Python $version)"
    # --clear, because what an interrupted call left behind is not to be trusted.
    output=$("$python" -m venv --clear .venv 2>&1) || explain ".venv could not be made" "$output"
fi

echo "installing randq${extras:+ with $extras} (about a minute)"
rm -f .venv/.ready
output=$(.venv/bin/python -m pip install --disable-pip-version-check --no-input \
    --constraint constraints.txt --editable ".${extras:+[$extras]}" 2>&1) ||
    explain "randq could not be installed" "$output"
echo "$wanted$extras" 2>/dev/null >.venv/.ready || explain ".venv could not be finished" "No space left"
