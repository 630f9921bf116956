#!/bin/sh
# completion.sh TESSERA -- the man page and the completions of shells: they are complete (every
# command and option of --help), free of errors where a checker is installed, and bash, zsh and fish
# offer what fits.
set -eu
tessera=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"
PATH=$(dirname "$tessera"):$PATH
passed=0 skipped=''
fail() { echo "completion: $*"; exit 1; }
pass() { passed=$((passed + 1)); }

"$tessera" man >tessera.1
for shell in bash zsh fish; do "$tessera" completion $shell >tessera.$shell; done
if "$tessera" completion csh 2>error; then fail "csh is no shell that is known"; fi
grep -q "bash, zsh, fish" error || fail "the error does not name the shells"
pass

# ---- everything of --help is in all four -----------------------------------------------------
commands=$("$tessera" help | sed -n '/^commands/,/^$/p' | awk 'NR > 1 && NF { print $1 }')
benchmarks=$("$tessera" bench --help | sed -n '/^benchmarks/,$p' | awk 'NR > 1 && NF { print "bench_" $1 }')
[ "$(echo "$commands" | wc -l)" -ge 10 ] || fail "--help lists no commands"
for command in $commands $benchmarks; do
  [ "$command" != help ] || continue
  words=$(echo "$command" | tr _ ' ')
  grep -q "^\.SS \"tessera $words\"$" tessera.1 || fail "tessera(1) has no '$words'"
  # shellcheck disable=SC2086  # two words
  for option in $("$tessera" $words --help | sed -n '/^options/,/^$/s/^  ...\? *\(--[a-z-]*\).*/\1/p' | grep -v -- '--help' | sort -u); do
    escaped=$(printf '%s' "$option" | sed 's/-/\\\\-/g')
    grep -q -- "$escaped" tessera.1 || fail "tessera(1) has no $words $option"
    sed -n "/^    '$words') options=/p" tessera.bash | grep -q -- "$option" || fail "bash: no $words $option"
    sed -n "/^    '$words')$/,/;;/p" tessera.zsh | grep -q -- "$option" || fail "zsh: no $words $option"
    grep "'__tessera_in $words'" tessera.fish | grep -q -- "-l ${option#--} " || fail "fish: no $words $option"
  done
  pass
done

# ---- the man page ------------------------------------------------------------------------------
if command -v groff >/dev/null; then
  groff -man -Tutf8 -ww tessera.1 >page 2>warnings || fail "groff does not take the page"
  [ ! -s warnings ] || { cat warnings; fail "groff warns"; }
  grep -q 'a check found a difference' page || fail "the page has no exit codes"
  pass
else skipped="$skipped groff"; fi
if command -v mandoc >/dev/null; then # "missing date": there is none that would be the same in every build
  mandoc -T lint -W warning tessera.1 | grep -v 'missing date' >warnings || :
  [ ! -s warnings ] || { cat warnings; fail "mandoc warns"; }
  pass
else skipped="$skipped mandoc"; fi

# ---- what is offered -----------------------------------------------------------------------------
touch model.pt2 in.safetensors plan.json notes.txt 'two words.json'
mkdir ranks
if command -v bash >/dev/null; then
  cat >ask.bash <<'END'
source ./tessera.bash
complete -p tessera >/dev/null || exit 1
# The words of a command line, cut as readline cuts them (at '='); the last is completed.
COMP_WORDS=() COMP_CWORD=-1
for word in "$@"; do
  while [[ $word == *=* ]]; do
    [[ -z ${word%%=*} ]] || COMP_WORDS+=("${word%%=*}")
    COMP_WORDS+=(=) word=${word#*=}
    [[ -n $word ]] || { [[ $word == *=* ]] || break; }
  done
  [[ -z $word && ${COMP_WORDS[-1]-} == = ]] || COMP_WORDS+=("$word")
done
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_tessera
printf '%s\n' "${COMPREPLY[@]}"
END
  offers() { # words that must be offered, '!' before those that must not; --; the command line
    wanted=''
    while [ "$1" != -- ]; do wanted="$wanted $1" && shift; done
    shift
    bash ask.bash tessera "$@" >offered || fail "bash: ask.bash fails at 'tessera $*'"
    for word in $wanted; do
      case $word in
        !*) ! grep -qx -- "${word#!}" offered || { cat offered; fail "bash: 'tessera $*' offers ${word#!}"; } ;;
        *) grep -qx -- "$word" offered || { cat offered; fail "bash: 'tessera $*' does not offer $word"; } ;;
      esac
    done
    pass
  }
  offers run inspect plan shard opt ops passes bench doctor completion man help -- ''
  offers plan passes '!run' -- p
  offers allreduce run calibrate -- bench ''
  offers --input -i --mesh --check --help -- run -
  offers --mesh '!--plan' -- run --m
  offers --begin '!--mesh' -- bench allreduce --
  offers --seconds '!--begin' -- bench run --
  offers model.pt2 ranks in.safetensors -- run ''
  offers in.safetensors ranks '!model.pt2' '!plan.json' -- run -i ''
  offers in.safetensors '!model.pt2' -- run --input=
  offers auto plan.json '!model.pt2' -- run --plan ''
  offers ranks '!model.pt2' -- shard model.pt2 -o ''
  offers tp=2 dp=2 -- plan model.pt2 --mesh ''
  offers 2 4 '!tp=2' -- plan model.pt2 --mesh tp=
  offers 2,dp=2 2,dp=4 -- plan model.pt2 --mesh tp=2,d
  offers tp=2 -- plan model.pt2 --mesh=t
  offers a100 plan.json -- plan model.pt2 --machine ''
  offers cse dce fuse_pointwise -- opt model.pt2 --passes ''
  offers inline,cse '!cse' -- opt model.pt2 --passes inline,c
  offers aten.addmm.default '!aten.add.Tensor' -- ops aten.addm
  offers threads mpi '!sim' -- bench allreduce --comm ''
  offers f32 bf16 -- bench allreduce --dtype ''
  offers sum max -- bench allreduce --op ''
  offers bash zsh fish -- completion ''
  offers nodes -- run --check=
  offers model.pt2 '!nodes' -- run --check ''
  offers '!model.pt2' -- run --repeat ''
  bash ask.bash tessera run --plan two | grep -qx 'two words.json' || fail "bash: a name with a space is cut"
else skipped="$skipped bash"; fi

if command -v zsh >/dev/null; then
  zsh -n tessera.zsh || fail "zsh: the script has errors"
  cp tessera.zsh _tessera
  zsh -f -c 'fpath=($PWD $fpath); autoload -Uz compinit; compinit -u -d dump; [[ $_comps[tessera] == _tessera ]] && autoload +X -Uz _tessera' ||
    fail "zsh: the script is not found as a completion"
  pass
else skipped="$skipped zsh"; fi

if command -v fish >/dev/null; then
  fish -n tessera.fish || fail "fish: the script has errors"
  fish_offers() { # word; command line
    fish --no-config -c "source tessera.fish; complete -C '$2'" 2>error | cut -f1 | grep -qx -- "$1" ||
      { cat error; fail "fish: '$2' does not offer $1"; }
    pass
  }
  fish_offers inspect 'tessera '
  fish_offers allreduce 'tessera bench '
  fish_offers --mesh 'tessera run --m'
  fish_offers --begin 'tessera bench allreduce --'
  fish_offers model.pt2 'tessera run '
  fish_offers auto 'tessera run --plan '
  fish_offers plan.json 'tessera run --plan '
  fish_offers tp=2,dp=2 'tessera plan model.pt2 --mesh tp=2,'
  fish_offers inline,cse 'tessera opt model.pt2 --passes inline,c'
  fish_offers aten.addmm.default 'tessera ops aten.addm'
else skipped="$skipped fish"; fi
echo "$passed passed, 0 failed${skipped:+ (not installed:$skipped)}"
