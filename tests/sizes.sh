#!/bin/sh
# sizes.sh SOURCE -- no file is longer than 600 lines, no function longer than 60: what is longer has
# more than one subject.  C (as clang-format leaves it), Python and shell.
set -eu
cd "$1"
files=$(find src tests bench python examples scripts check demo -type f \
  \( -name '*.[ch]' -o -name '*.def' -o -name '*.py' -o -name '*.sh' -o ! -name '*.*' \) \
  ! -path '*/golden/*' ! -path '*/corpus/*' ! -path '*/__pycache__/*' ! -path '*/build/*' | sort)
# shellcheck disable=SC2086  # a list of files
awk '
  BEGIN {
    longest["file"] = 600
    longest["function"] = 60
    except["src/kernels/simd/pointwise_real.h"] = 1 # one function, a table of instructions as a switch
  }
  function too_long(where, what, lines) {
    if (lines <= longest[what] || where in except) return
    print where (what == "file" ? "" : ":" head) ": a " what " of " lines " lines, more than " longest[what]
    bad++
  }
  function ended(last) { if (head) { too_long(FILE, "function", last - head + 1); functions++ } head = 0 }
  function file_ended() {
    if (language == "python") while (depth) python_ended()
    if (FILE) too_long(FILE, "file", lines)
  }
  function python_ended() { head = begin[depth--]; ended(last_code) }

  FNR == 1 {
    file_ended()
    FILE = FILENAME; head = depth = text = 0; files++
    language = FILE ~ /\.([ch]|def)$/ ? "c" : FILE ~ /\.py$/ || /^#!.*python/ ? "python" : FILE ~ /\.sh$/ || /^#!.*sh/ ? "shell" : ""
  }
  { lines = FNR }

  # C: a function begins with the last line at the margin before its body, and ends with a brace there.  What ends
  # with more than a brace is a type or a table.  In a macro the margin is two spaces in.
  language == "c" && !macro && /^[A-Za-z_]/ && !/^[A-Za-z_0-9]+:$/ { head = FNR }
  language == "c" && !macro && /^}$/ { ended(FNR) }
  language == "c" && macro && /^  [A-Za-z_]/ { head = FNR }
  language == "c" && macro && /^  } *\\?$/ { ended(FNR) }
  language == "c" && /^#[ \t]*define/ { macro = 1; head = 0 }
  language == "c" && macro && !/\\$/ { macro = 0 }

  # Shell: name() { ... }, both at the margin.
  language == "shell" && /^[a-z_0-9]+\(\) *\{$/ { head = FNR }
  language == "shell" && /^}/ { ended(FNR) }

  # Python: a def ends with the last line that stands further in; texts of several lines may stand anywhere.
  language == "python" {
    in_text = text
    rest = $0
    while (match(rest, /"""|\047\047\047/)) {
      quote = substr(rest, RSTART, 3)
      if (!text) text = quote; else if (text == quote) text = ""
      rest = substr(rest, RSTART + 3)
    }
    if (in_text) last_code = FNR
    else if (/[^ \t]/ && !/^[ \t]*#/ && !/^[ \t]*[])}]/) {
      match($0, /^ */)
      while (depth && RLENGTH <= indent[depth]) python_ended()
      if (/^ *(async )?def /) { begin[++depth] = FNR; indent[depth] = RLENGTH = match($0, /[^ ]/) - 1 }
      last_code = FNR
    } else if (/^[ \t]*[])}]/) last_code = FNR
  }
  END {
    file_ended()
    if (bad) exit 1
    print files " files, " functions " functions, none too long"
  }
' $files
