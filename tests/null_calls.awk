# null_calls.awk tessera.h -- writes the calls of test_null.c: for every function of the header that
# takes a pointer, one call with good arguments, then one for each argument that can be missing: NULL
# for a pointer, -1 for a count.  A parameter of a type that is not known here is an error, so a new
# function is covered or the build fails.

function trim(s) { gsub(/^[ \t]+|[ \t]+$/, "", s); return s }

# What stands for a good argument, by type (and name, where a type has several meanings).
function good(type, name, fn) {
  if (type == "char *" && name in text_of) return text_of[name]
  if (type " " name in value) return value[type " " name]
  if (type in value) return value[type]
  printf "null_calls: %s has a parameter '%s %s', for which no good value is known\n", fn, type, name > "/dev/stderr"
  failed = 1
  exit 1
}

BEGIN {
  value["TessCtx *"] = "w->ctx"; value["TessTensor *"] = "w->tensor"; value["TessProgram *"] = "w->program"
  value["TessScope *"] = "w->scope"; value["TessMesh *"] = "w->mesh"; value["TessHub *"] = "w->hub"
  value["TessModule *"] = "w->module"; value["TessWork *"] = "w->work"; value["TessCut *"] = "&w->cut"
  value["TessTensor **"] = "(void *)w->tensors"; value["TessArg *"] = "w->args"; value["TessSaved *"] = "&w->saved"
  value["TessRankFn *"] = "null_rank"; value["TessForwardFn *"] = "null_forward"; value["TessModuleVisit *"] = "null_visit"
  value["TessPartitionFn *"] = "null_partition"; value["TessModuleHook *"] = "null_hook"; value["TessHookAt"] = "TESS_BEFORE_FORWARD"
  value["TessTrainer *"] = "w->trainer"; value["TessTraining *"] = "&w->training"; value["TessStep *"] = "&w->step"
  value["TessCheckpoint *"] = "w->checkpoint"; value["TessChange *"] = "&w->change"; text_of["format"] = "\"hf\""
  value["TessData *"] = "&w->data"; value["double *"] = "&w->number"; value["int64_t"] = "1"
  value["TessGradHook *"] = "null_grad_hook"; value["TessHook *"] = "w->hook"; value["unsigned"] = "0"; text_of["grad_placements"] = "\"S(0)\""
  value["TessOptimizer *"] = "w->optimizer"; value["TessDataParallel *"] = "w->replicas"; value["TessReplicas *"] = "&w->how"
  value["TessPlanEntry *"] = "&w->entry"; text_of["settings"] = "\"lr=1\""; text_of["optim"] = "\"sgd\""; text_of["kind"] = "\"linear\""
  value["TessModule **"] = "w->modules"; value["TessFsdpOptions *"] = "&w->sharding"; value["TessFsdpSetting"] = "TESS_FSDP_FORCE_SUM"
  value["TessAllReduceHook *"] = "null_all_reduce"; value["TessFsdpWatch *"] = "null_watch"
  value["TessDtype"] = "TESS_F32"; value["TessDtype *"] = "&w->dtype"
  value["char *"] = "w->text"; value["char **"] = "w->names"; value["unsigned char *"] = "w->state"
  value["int64_t *"] = "w->numbers"; value["int *"] = "w->ints"; value["void *"] = "w->room"; value["void (*)(void *)"] = "null_release"
  text_of["op"] = "\"aten.relu.default\""; text_of["placements"] = text_of["from"] = text_of["to"] = "\"S(0)\""
  text_of["name"] = "\"weight\""; text_of["path"] = text_of["folder"] = text_of["failure"] = text_of["message"] = "\"/dev/null/x\""
  text_of["saved"] = "\"{\\\"tensors\\\": []}\""
  value["void * text"] = "malloc(8)"; value["TessTensor * held"] = "w->held"; value["int * coord"] = "w->zeros"
  value["int"] = "1"; value["size_t"] = "sizeof w->text"; value["double"] = "1"; value["uint64_t"] = "1"
}

/^TESS_API / { declared++ }
{ sub(/\/\*.*\*\//, ""); text = text " " $0 }

END {
  if (failed) exit 1
  gsub(/\/\*[^*]*(\*[^*\/][^*]*)*\*\//, " ", text)
  n = split(text, part, "TESS_API ")
  for (i = 2; i <= n; i++) {
    decl = part[i]
    sub(/;.*/, "", decl)
    if (decl ~ /^__attribute__|^#/ || decl !~ /tess_[a-z0-9_]+\(/) continue
    match(decl, /tess_[a-z0-9_]+\(/)
    result = trim(substr(decl, 1, RSTART - 1)); gsub(/const /, "", result)
    fn = substr(decl, RSTART, RLENGTH - 1)
    list = substr(decl, RSTART + RLENGTH); sub(/\)[ \t]*$/, "", list)
    count = split_args(list, arg)
    pointers = 0
    for (k = 1; k <= count; k++) {
      type[k] = arg[k]; name = arg[k]
      if (arg[k] ~ /\(\*/) { type[k] = "void (*)(void *)"; name = "release" }
      else {
        sub(/\[16\]/, "", type[k]); gsub(/const/, "", type[k])
        if (match(type[k], /[A-Za-z_0-9]+[ ]*$/)) { name = trim(substr(type[k], RSTART)); type[k] = substr(type[k], 1, RSTART - 1) }
        if (arg[k] ~ /\[16\]/) type[k] = type[k] "*"
        gsub(/[ \t]+/, " ", type[k]); gsub(/ \* \*/, " **", type[k]); gsub(/\* \*/, "**", type[k]); type[k] = trim(type[k])
      }
      value_of[k] = good(type[k], name, fn)
      name_of[k] = name
      missing[k] = type[k] ~ /\*/ ? "NULL" : type[k] == "int" && name ~ /^(n|m|ndim|naxes|nargs|ninputs|cap|axis|i|rank|src|hook|level|how|keep)$/ ? "-1" : ""
      if (type[k] ~ /\*/) pointers++
    }
    functions++
    if (!pointers) continue
    for (k = 0; k <= count; k++) if (k == 0 || missing[k] != "") write_call(k)
  }
  if (functions != declared) {
    printf "null_calls: %d functions are declared, %d were read\n", declared, functions > "/dev/stderr"
    exit 1
  }
  printf "static const NullCall null_calls[] = {%s};\n", table
}

# At commas outside of brackets.
function split_args(list, out,   c, depth, k, m, s) {
  list = trim(list)
  if (list == "void" || list == "") return 0
  m = 1; out[1] = ""
  for (k = 1; k <= length(list); k++) {
    c = substr(list, k, 1)
    if (c == "(") depth++
    if (c == ")") depth--
    if (c == "," && !depth) { out[++m] = ""; continue }
    out[m] = out[m] c
  }
  for (k = 1; k <= m; k++) out[k] = trim(out[k])
  return m
}

function write_call(without,   k, call, id) {
  call = ""
  for (k = 1; k <= count; k++) call = call (k > 1 ? ", " : "") (k == without ? missing[k] : value_of[k])
  id = "call_" ++calls
  printf "static long %s(Workbench *w) {\n  (void)w;\n", id
  if (result == "void") printf "  %s(%s);\n  return 0;\n}\n", fn, call
  else if (result ~ /\*/) printf "  return %s(%s) ? 1 : -1;\n}\n", fn, call
  else printf "  return (long)%s(%s);\n}\n", fn, call
  table = table sprintf("\n  {\"%s\", \"%s\", %s, %d},", fn, without ? name_of[without] : "", id, type[1] == "TessCtx *")
}
