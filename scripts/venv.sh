# Sourced by the other scripts: makes .venv (or the folder $environment) and installs the project with the extra $1 into it, and the
# requirements file $2 if there is one, unless that is done already. $venv is its path.
# Needs Python 3.11 or newer and its venv module, nothing else. PYTHON names another interpreter than python3: if .venv was made by another
# version of Python, .venv-3.13 or the like is used instead.

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
python="${PYTHON:-python3}"

fail() { printf '%s\n' "$1" >&2; exit 1; }

command -v "$python" >/dev/null 2>&1 || fail "python3 is missing: install the package python3 (3.11 or newer), then run this again."
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "$("$python" --version 2>&1) is too old: lockstep needs Python 3.11 or newer. Name another one with PYTHON=/path/to/python3."
"$python" -c 'import venv, ensurepip' 2>/dev/null || fail "Python's venv module is missing: install the package python3-venv, then run this again."

version_of() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])'; }
venv="$root/${environment:-.venv}"
if [ -n "${PYTHON:-}" ] && [ -x "$venv/bin/python" ] && [ "$(version_of "$venv/bin/python")" != "$(version_of "$python")" ]; then
    venv="$venv-$(version_of "$python")"
fi

# Returns whether there is a Java on which Spark runs.
found_java() {
    local java="${JAVA_HOME:+$JAVA_HOME/bin/}java" printed
    command -v "$java" >/dev/null 2>&1 && printed="$("$java" -version 2>&1)" && [[ "$printed" =~ version\ \"([0-9]+) ]] && [ "${BASH_REMATCH[1]}" -ge 17 ]
}

# Prints a digest of all that an installation depends on: the project's declaration, the sources of the kernels, what builds them, and the
# file of further requirements $1, if any.
installation_digest() {
    "$python" - "$root" "$(command -v cargo || true)" "$1" <<'END'
import hashlib, pathlib, sys
root, cargo, *requirements = sys.argv[1:]
digest = hashlib.sha256(cargo.encode())
for pattern in ("pyproject.toml", "hatch_build.py", "native/Cargo.toml", "native/src/*.rs", *filter(None, requirements)):
    for path in sorted(pathlib.Path(root).glob(pattern)):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
print(digest.hexdigest()[:16])
END
}

install_project() {
    local extra="$1" requirements="${2:-}" library="$root/protocol/lockstep/protocol/_native.abi3.so"
    local digest stamp other
    digest="$(installation_digest "$requirements")"
    stamp="$venv/installed-$extra-$digest"
    if [ -e "$stamp" ] && { [ "${LOCKSTEP_NATIVE:-}" != require ] || [ -e "$library" ]; }; then return; fi
    # pip comes last: without it an earlier run was cut short.
    [ -x "$venv/bin/pip" ] || {
        echo "making $venv …" >&2
        "$python" -m venv "$venv" ||
            fail "$python -m venv failed, see above: install the package python3-venv, then run this again."
    }
    echo "installing lockstep-mq[$extra]${requirements:+, $requirements} and their dependencies …" >&2
    # Stamps of other sources are void: the library of the kernels is replaced.
    for other in "$venv"/installed-*; do [[ "$other" == *-"$digest" ]] || rm -f "$other"; done
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --editable "$root[$extra]" ${requirements:+--requirement "$root/$requirements"}
    "$venv/bin/python" -c 'from lockstep.protocol.native import implementation; print(f"installed, {implementation()}")' >&2
    touch "$stamp"
}
