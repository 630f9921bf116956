/* doctor.c -- `tessera doctor`: what this machine has, what is missing, and whether it
 * computes right.
 *
 * A finding is good, worth knowing, or bad.  Bad ones are what makes results wrong or
 * commands fail, and only they change the exit code.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>
#include <zlib.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "base/clock.h"
#include "base/json.h"
#include "base/textbuf.h"
#include "cli/cli.h"
#include "comm/launch.h"
#include "kernels/onednn.h"
#include "tessera.h"

typedef enum { GOOD, NOTE, BAD } Verdict;

typedef struct {
  const char *what;
  Verdict verdict;
  TextBuf text;
  const char *hint; /* the line that mends it */
} Finding;

enum { MAX_FINDINGS = 24 };
typedef struct {
  Finding list[MAX_FINDINGS];
  int n;
} Findings;

static Finding *find(Findings *f, const char *what) {
  Finding *one = &f->list[f->n < MAX_FINDINGS - 1 ? f->n++ : MAX_FINDINGS - 1];
  one->what = what;
  return one;
}

/* ---- the machine ---------------------------------------------------------------------- */

/* Value of the first "key : value" line of a file in /proc; "" if there is none. */
static void proc_value(const char *path, const char *key, char *buf, size_t cap) {
  char line[4096];
  FILE *f = fopen(path, "r");
  buf[0] = 0;
  while (f && fgets(line, sizeof line, f)) {
    size_t n = strlen(key);
    if (strncmp(line, key, n)) continue;
    char *value = line + n;
    value += strspn(value, " \t:");
    snprintf(buf, cap, "%.*s", (int)strcspn(value, "\n"), value);
    break;
  }
  if (f) fclose(f);
}

static void find_system(Findings *f) {
  struct utsname u;
  char os[160];
  Finding *one = find(f, "system");
  proc_value("/etc/os-release", "PRETTY_NAME=", os, sizeof os);
  char *name = os[0] == '"' ? os + 1 : os;
  name[strcspn(name, "\"")] = 0;
  if (uname(&u) == 0)
    text_printf(&one->text, "%s%s%s %s, %s", name, *name ? ", " : "", u.sysname, u.release, u.machine);
}

/* Those that kernels of ours or oneDNN's ask for. */
static void find_cpu(Findings *f) {
  static const char *const wanted[] = {"avx2",        "fma",         "f16c",     "avx512f", "avx512bw",
                                       "avx512_vnni", "avx512_bf16", "amx_tile", "asimd",   "sve"};
  char model[256], flags[4096];
  proc_value("/proc/cpuinfo", "model name", model, sizeof model);
  proc_value("/proc/cpuinfo", "flags", flags, sizeof flags);
  if (!*flags) proc_value("/proc/cpuinfo", "Features", flags, sizeof flags);
  Finding *one = find(f, "cpu");
  text_printf(&one->text, "%s, %d cores for this process", *model ? model : "unknown", parallel_cores());
  one = find(f, "cpu features");
  int n = 0;
  for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
    size_t len = strlen(wanted[i]);
    for (const char *p = flags; (p = strstr(p, wanted[i])); p += len) {
      if ((p != flags && p[-1] != ' ') || (p[len] && p[len] != ' ')) continue;
      text_printf(&one->text, "%s%s", n++ ? " " : "", wanted[i]);
      break;
    }
  }
  if (!n) text_puts(&one->text, "none of those that the kernels look for");
  Isa isa = isa_detect();
  one = find(f, "kernels use");
  text_puts(&one->text, isa_name(isa));
  if (getenv("TESSERA_ISA")) text_printf(&one->text, " (TESSERA_ISA=%s)", getenv("TESSERA_ISA"));
#ifdef TESS_X86
  if (isa == ISA_BASE && !getenv("TESSERA_ISA")) {
    one->verdict = NOTE;
    one->hint =
        "without AVX2 everything is several times slower; a virtual machine may hide it (cpu type 'host' shows it)";
  }
#endif
}

static void find_memory(Findings *f) {
  char total[64], free_[64], a[32], b[32];
  proc_value("/proc/meminfo", "MemTotal", total, sizeof total);
  proc_value("/proc/meminfo", "MemAvailable", free_, sizeof free_);
  Finding *one = find(f, "memory");
  text_printf(&one->text, "%s, %s available", human_bytes(strtod(total, NULL) * 1024, a, sizeof a),
              human_bytes(strtod(free_, NULL) * 1024, b, sizeof b));
}

/* ---- libraries --------------------------------------------------------------------------- */

static void find_libraries(Findings *f) {
  char version[32];
  Finding *one = find(f, "oneDNN");
  text_printf(&one->text, "%s, using %s", onednn_version(version, sizeof version), onednn_isa());
  one = find(f, "OpenMP");
#ifdef _OPENMP
  text_printf(&one->text, "version %d, at most %d threads", _OPENMP, omp_get_max_threads());
  const char *set = getenv("OMP_NUM_THREADS");
  if (set) text_printf(&one->text, " (OMP_NUM_THREADS=%s)", set);
#else
  text_puts(&one->text, "not in this build: oneDNN's threads and ours are not the same");
  one->verdict = NOTE;
  one->hint = "install the compiler's OpenMP (Debian with clang: libomp-dev) and build again";
#endif
  one = find(f, "yyjson");
  uint32_t v = yyjson_version();
  text_printf(&one->text, "%u.%u.%u", v >> 16, v >> 8 & 255, v & 255);
  one = find(f, "zlib, minizip");
  text_printf(&one->text, "%s", zlibVersion());
}

static bool in_path(const char *program) {
  char file[4096];
  const char *path = getenv("PATH");
  for (const char *p = path; p && *p;) {
    size_t n = strcspn(p, ":");
    snprintf(file, sizeof file, "%.*s/%s", (int)n, p, program);
    if (n && access(file, X_OK) == 0) return true;
    p += n + (p[n] == ':');
  }
  return false;
}

static void find_mpi(Findings *f) {
  const Transport *mpi = transport_find("mpi");
  Finding *one = find(f, "MPI");
  const char *launcher = in_path("mpirun")    ? "mpirun"
                         : in_path("mpiexec") ? "mpiexec"
                         : in_path("srun")    ? "srun"
                                              : NULL;
  if (launcher) {
    text_printf(&one->text, "%s is there%s", launcher,
                transport_launched() == mpi ? ", and has started this process" : "");
  } else {
    text_puts(&one->text, "no launcher (mpirun, mpiexec, srun); one machine does not need it");
    one->verdict = NOTE;
    one->hint = "apt install libopenmpi-dev openmpi-bin";
  }
  char path[4096];
  one = find(f, "MPI plug-in");
  Status s = transport_check(mpi, path, sizeof path);
  if (!s) {
    text_puts(&one->text, path);
  } else {
    const char *text = status_message(s);
    text_printf(&one->text, "%.*s", (int)strcspn(text, "\n"), text);
    one->verdict = NOTE;
    one->hint = transport_needs(mpi);
  }
  status_free(s);
}

/* ---- does it compute right? ------------------------------------------------------------------ */

/* n x n matrices whose product is known: row i of a holds i + 1, b is the identity times 2. */
static Status check_matmul(Ctx *ctx, int64_t n, double *gflops, bool *right) {
  Scope scope = {0};
  Arena arena = {0};
  Tensor *a, *b;
  const Op *op = op_find("aten.mm.default");
  Value bound[2], *out = NULL;
  Status s = op ? OK : fail(ERR_FAIL, "aten.mm.default is not in the registry");
  if (!s) s = tensor_new(&scope, DT_F32, 2, (int64_t[]){n, n}, &a);
  if (!s) s = tensor_new(&scope, DT_F32, 2, (int64_t[]){n, n}, &b);
  double best = 1e30;
  for (int64_t i = 0; !s && i < n * n; i++) {
    ((float *)tensor_data(a))[i] = (float)(i / n + 1);
    ((float *)tensor_data(b))[i] = i / n == i % n ? 2 : 0;
  }
  for (int run = 0; !s && run < 4; run++) {
    bound[0] = val_tensor(a);
    bound[1] = val_tensor(b);
    Call c = {.ctx = ctx, .op = op, .arg = bound, .scope = &scope, .arena = &arena};
    double start = clock_now();
    s = op_dispatch(&c);
    if (clock_now() - start < best) best = clock_now() - start;
    out = c.out;
  }
  *right = !s;
  for (int64_t i = 0; !s && i < n * n; i++)
    *right &= ((float *)tensor_data(out[0].tensor))[i] == 2 * (float)(i / n + 1);
  *gflops = 2 * (double)n * (double)n * (double)n / best * 1e-9;
  scope_clear(&scope);
  arena_free(&arena);
  return s;
}

static void find_matmul(Findings *f, int threads) {
  Finding *one = find(f, threads == 1 ? "matmul, 1 thread" : "matmul, all cores");
  Ctx ctx;
  double gflops;
  bool right;
  ctx_init(&ctx, threads);
  Status s = check_matmul(&ctx, 768, &gflops, &right);
  if (s) text_printf(&one->text, "%s", status_message(s));
  else text_printf(&one->text, "%s, %.0f GFLOP/s", right ? "right" : "WRONG RESULT", gflops);
  if (s || !right) {
    one->verdict = BAD;
    one->hint = "try TESSERA_ISA=avx2 or TESSERA_ISA=base, and report it with this output";
  }
  status_free(s);
  ctx_free(&ctx);
}

/* ---- telling ------------------------------------------------------------------------------------- */

static void print_text(const Findings *f) {
  static const char *const marks[] = {"ok", "note", "BAD"}, *const colors[] = {"\033[32m", "\033[33m",
                                                                               "\033[1;31m"};
  bool color = terminal_colors(stdout);
  printf("tessera %s\n", TESS_VERSION);
  for (int i = 0; i < f->n; i++) {
    const Finding *one = &f->list[i];
    printf("%s%-5s%s %-18s %s\n", color ? colors[one->verdict] : "", marks[one->verdict], color ? "\033[0m" : "",
           one->what, one->text.text ? one->text.text : "");
    if (one->hint) printf("%24s %s\n", "", one->hint);
  }
}

static Status print_as_json(const Findings *f) {
  static const char *const words[] = {"good", "note", "bad"};
  yyjson_mut_doc *d = yyjson_mut_doc_new(NULL);
  if (!d) return fail_oom();
  yyjson_mut_val *root = yyjson_mut_obj(d), *list = yyjson_mut_arr(d);
  yyjson_mut_doc_set_root(d, root);
  yyjson_mut_obj_add_str(d, root, "version", TESS_VERSION);
  yyjson_mut_obj_add_int(d, root, "threads", parallel_cores());
  yyjson_mut_obj_add_str(d, root, "isa", isa_name(isa_detect()));
  yyjson_mut_obj_add_val(d, root, "findings", list);
  for (int i = 0; i < f->n; i++) {
    const Finding *one = &f->list[i];
    yyjson_mut_val *o = yyjson_mut_arr_add_obj(d, list);
    yyjson_mut_obj_add_str(d, o, "what", one->what);
    yyjson_mut_obj_add_str(d, o, "verdict", words[one->verdict]);
    yyjson_mut_obj_add_strcpy(d, o, "text", one->text.text ? one->text.text : "");
    if (one->hint) yyjson_mut_obj_add_str(d, o, "hint", one->hint);
  }
  return json_print(stdout, d);
}

static const char examples[] = "  tessera doctor\n  tessera doctor --json\n";

static const Option options[] = {{"--json", 0, OPT_FLAG, offsetof(JsonOption, json), NULL, "findings as JSON"}};
const CommandSpec spec_doctor = {
    .usage = "[--json]", .examples = examples, .words = TAKES_ANYTHING, OPTIONS(options)};

Status command_doctor(int argc, char **argv) {
  JsonOption o = {0};
  bool help;
  TextList words;
  TRY(options_parse("doctor", &spec_doctor, &o, argc, argv, &words, &help));
  if (help) return OK;
  if (words.n) return fail(ERR_USAGE, "doctor takes no argument, '%s' was given", words.v[0]);
  Findings f = {0};
  find_system(&f);
  find_cpu(&f);
  find_memory(&f);
  find_libraries(&f);
  find_mpi(&f);
  find_matmul(&f, 1);
  if (parallel_cores() > 1) find_matmul(&f, parallel_cores());
  Status s = OK;
  if (o.json) s = print_as_json(&f);
  else print_text(&f);
  bool bad = false;
  for (int i = 0; i < f.n; i++) {
    bad |= f.list[i].verdict == BAD;
    text_free(&f.list[i].text);
  }
  return s ? s : bad ? fail(ERR_FAIL, "this machine does not compute right") : OK;
}
