# What demo, test and check share: a Python, the .venv, the packages of the lock files. Sourced, from the checkout's root.
# All words go to stderr, so that the output of what is run stays its own.

# Every process of the bridge would compile our sources again: half a second for each of the hundreds that a test run starts.
unset PYTHONDONTWRITEBYTECODE

say() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }
fail() { say "$@"; exit 1; }

# The first Python that is new enough and can make environments.
find_python() {
    local candidate
    for candidate in python3 python3.13 python3.12 python3.11 python3.14 python; do
        if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
            printf '%s\n' "$candidate"
            return
        fi
    done
    candidate=$(python3 -V 2>&1) || fail "Python 3.11 or newer is needed, and no python3 was found"
    if python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        fail "$candidate cannot make environments: install its venv module (Debian, Ubuntu: apt install python3-venv)"
    fi
    fail "Python 3.11 or newer is needed; python3 is $candidate"
}

# What an installation is made of: when any of it changes, it is made anew.
fingerprint() {
    { pwd; .venv/bin/python -VV; cat "$@" pyproject.toml; } | .venv/bin/python -c '
import hashlib, sys
print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())'
}

# install LOCK: the packages of that lock file and this checkout, editable, into .venv. Needs no network when nothing changed.
install() {
    local lock=$1 stamp=.venv/installed-$1 python wanted
    if ! .venv/bin/python -c '' 2>/dev/null; then
        python=$(find_python)
        say "making .venv with $("$python" -V 2>&1)"
        "$python" -m venv --clear .venv || fail "the environment could not be made in $PWD/.venv"
    fi
    wanted=$(fingerprint requirements-build.lock "$lock")
    if [[ -f $stamp && $(<"$stamp") == "$wanted" ]]; then
        return
    fi
    say "installing the packages of $lock into .venv (once; about a minute)"
    pip --require-hashes -r "$lock" || fail "the packages of $lock could not be installed; is the network there?"
    pip --require-hashes -r requirements-build.lock || fail "setuptools could not be installed; is the network there?"
    # Without isolation: it would fetch a setuptools of its own, past the lock. "compat" is a plain path entry, which
    # starts 10 ms sooner than setuptools' import hook.
    pip --no-deps --no-index --no-build-isolation --config-settings editable_mode=compat -e . ||
        fail "this checkout could not be installed into .venv"
    printf '%s\n' "$wanted" >"$stamp"
    say "installed"
}

pip() { .venv/bin/python -m pip install --quiet --quiet --disable-pip-version-check --no-input "$@" >&2; }
