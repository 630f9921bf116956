# trials.sh -- commands that are tried from outside; sourced by the scripts that do so.
# $temp is a folder for them, $temp/out and $temp/err what the last one printed.
temp=$(mktemp -d)
trap 'chmod -R u+w "$temp"; rm -rf "$temp"' EXIT
passed=0 failed=0

# check CODES PATTERN COMMAND...: the exit code is one of these, and a pattern is in what it
# prints.
check() {
  code=$1 pattern=$2
  shift 2
  timeout 120 "$@" >"$temp/out" 2>"$temp/err"
  got=$?
  if case " $code " in *" $got "*) true ;; *) false ;; esac && { [ -z "$pattern" ] || cat "$temp/out" "$temp/err" | grep -qE -e "$pattern"; }; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
    echo "$*"
    echo "  exit code $got, expected $code and '$pattern'"
    sed 's/^/  | /' "$temp/out" "$temp/err" | head -20
  fi
}

# try CODES PATTERN ARGUMENTS...: the same of $tessera.
try() {
  code=$1 pattern=$2
  shift 2
  check "$code" "$pattern" "$tessera" "$@"
}

# that TEST...: a fact about the world.
that() {
  if "$@"; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "not so: $*"; fi
}

# The last line of a script.
sum_up() {
  echo "$passed passed, $failed failed"
  [ $failed = 0 ]
}
