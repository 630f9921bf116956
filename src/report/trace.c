/* trace.c -- see trace.h. */
#include "report/trace.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/grow.h"
#include "graph/module_stack.h"
#include "ops/tensors.h"
#include "passes/comm_block.h"
#include "passes/started.h"

enum { DEEPEST = 64, MOST_SHOWN = 8 };

/* ---- what ran ------------------------------------------------------------------------------------------ */

typedef struct {
  const Node *node;
  const Call *call; /* NULL: of an interpreted node, which keeps nothing */
  Stage stage;
  double begun, ended;
} Span;

static int64_t count_spans(const TraceRun *r) { return r->program ? r->program->ninstrs : r->times->nspans; }

static Span span_at(const TraceRun *r, int64_t i) {
  if (r->program) {
    const Instr *in = &r->program->instrs[i];
    return (Span){in->node, &in->call, in->node->stage, in->begun, in->ended};
  }
  const NodeSpan *s = &r->times->span[i];
  return (Span){s->node, NULL, s->stage, s->begun, s->ended};
}

double trace_begun(const TraceRun *r) { return count_spans(r) ? span_at(r, 0).begun : 0; }
double trace_ended(const TraceRun *r) { return count_spans(r) ? span_at(r, count_spans(r) - 1).ended : 0; }

double trace_waited(const TraceRun *r) {
  double sum = 0;
  for (int64_t i = 0; i < count_spans(r); i++) {
    Span s = span_at(r, i);
    bool talks = s.node && (node_is(s.node, "tess.redistribute.default") || node_is(s.node, WAIT_TENSOR) ||
                            node_starts(s.node));
    if (talks) sum += s.ended - s.begun;
  }
  return sum;
}

/* ---- slices -------------------------------------------------------------------------------------------- */

/* A stage, a module or a node, with its part of the track. */
typedef struct {
  int64_t span;         /* of a node: which; else the first in it */
  int64_t begun, ended; /* nanoseconds */
  int level;            /* 0: a stage; 1 ...: modules; -1: a node */
} Slice;

typedef struct {
  const TraceRun *run;
  double zero;
  Slice *slice; /* those around others first */
  int64_t n, cap;
  int64_t open[DEEPEST]; /* slices that are not over, by level */
  int nopen;
} Slices;

static int64_t nanoseconds(const Slices *s, double at) { return (int64_t)llround((at - s->zero) * 1e9); }

static Status add_slice(Slices *s, Slice slice) {
  TRY_ROOM(s->slice, s->n, s->cap);
  s->slice[s->n++] = slice;
  return OK;
}

/* How many of the slices that surround a also surround b. */
static int shared_levels(const Span *a, const Span *b) {
  int n = 1;
  if (a->stage != b->stage) return 0;
  ModuleWalk x = modules_around(a->node), y = modules_around(b->node);
  while (n < DEEPEST && module_next(&x) && module_next(&y) && x.npath == y.npath &&
         !strncmp(x.path, y.path, x.npath))
    n++;
  return n;
}

static int count_levels(const Span *a) {
  int n = 1;
  for (ModuleWalk w = modules_around(a->node); n < DEEPEST && module_next(&w);) n++;
  return n;
}

static void close_down_to(Slices *s, int level, int64_t at) {
  while (s->nopen > level) s->slice[s->open[--s->nopen]].ended = at;
}

static Status find_slices(Slices *s) {
  int64_t n = count_spans(s->run), end = 0;
  Span last = {0};
  for (int64_t i = 0; i < n; i++) {
    Span now = span_at(s->run, i);
    int64_t begun = nanoseconds(s, now.begun);
    close_down_to(s, i ? shared_levels(&last, &now) : 0, end);
    for (int levels = count_levels(&now); s->nopen < levels; s->nopen++) {
      s->open[s->nopen] = s->n;
      TRY(add_slice(s, (Slice){i, begun, begun, s->nopen}));
    }
    end = nanoseconds(s, now.ended);
    TRY(add_slice(s, (Slice){i, begun, end, -1}));
    last = now;
  }
  close_down_to(s, 0, end);
  return OK;
}

/* ---- events -------------------------------------------------------------------------------------------- */

/* Microseconds, with a point in any locale. */
void trace_put_time(TextBuf *b, const char *key, int64_t ns) {
  text_printf(b, ",\"%s\":%lld.%03d", key, (long long)(ns / 1000), (int)(ns % 1000));
}

static void put_text(TextBuf *b, const char *key, const char *text) {
  if (!*text) return;
  text_printf(b, ",\"%s\":", key);
  text_json(b, text);
}

static void put_tensors(TextBuf *b, const char *key, TensorWalk w) {
  int n = 0;
  for (; tensor_next(&w); n++) {
    if (n == 0) text_printf(b, ",\"%s\":\"", key);
    if (n == MOST_SHOWN) text_puts(b, ", ...");
    if (n >= MOST_SHOWN) continue;
    text_printf(b, "%s%s[", n ? ", " : "", dtype_name(w.tensor->dtype));
    for (int d = 0; d < w.tensor->ndim; d++) text_printf(b, "%s%lld", d ? "," : "", (long long)w.tensor->size[d]);
    text_puts(b, "]");
  }
  if (n) text_puts(b, "\"");
}

static void put_node(TextBuf *b, const Span *span) {
  const Node *n = span->node;
  char text[256];
  text_json(b, n->nouts ? n->outs[0]->name : n->target);
  text_printf(b, ",\"cat\":\"%s\",\"args\":{\"op\":", stage_name(span->stage));
  text_json(b, n->target);
  node_module(n, text, sizeof text);
  if (strncmp(text, "_empty_nn_module_stack", 22) != 0) put_text(b, "module", text);
  put_text(b, "source", node_source(n, text, sizeof text));
  if (span->call) {
    put_tensors(b, "in", call_inputs(span->call));
    put_tensors(b, "out", call_outputs(span->call));
    double flops = op_flops(span->call), seconds = span->ended - span->begun;
    if (flops > 0) text_printf(b, ",\"flops\":%.0f", flops);
    if (flops > 0 && seconds > 0) text_printf(b, ",\"flops_per_s\":%.0f", flops / seconds);
  }
  text_puts(b, "}");
}

static void put_module(TextBuf *b, const Span *span, int level) {
  char path[256], type[256];
  ModuleWalk w = modules_around(span->node);
  for (int i = 0; i < level; i++) module_next(&w);
  snprintf(path, sizeof path, "%.*s", (int)w.npath, w.path);
  snprintf(type, sizeof type, "%.*s", (int)w.ntype, w.type);
  text_json(b, *path ? path : *type ? type : "(program)");
  text_printf(b, ",\"cat\":\"%s\",\"args\":{\"class\":", stage_name(span->stage));
  text_json(b, type);
  text_puts(b, "}");
}

/* Processes and threads are numbered from 1 on: 0 is the idle one to those who read traces. */
static void put_slice(TextBuf *b, const Slices *s, const Slice *slice, int rank) {
  Span span = span_at(s->run, slice->span);
  text_puts(b, "{\"ph\":\"X\",\"name\":");
  if (slice->level < 0) put_node(b, &span);
  else if (slice->level > 0) put_module(b, &span, slice->level);
  else text_printf(b, "\"%s\",\"cat\":\"%s\"", stage_name(span.stage), stage_name(span.stage));
  trace_put_time(b, "ts", slice->begun);
  trace_put_time(b, "dur", slice->ended - slice->begun);
  text_printf(b, ",\"pid\":%d,\"tid\":%d},\n", rank + 1, rank + 1);
}

static void put_names(TextBuf *b, int rank, const char *name) {
  text_printf(b, "{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%d,\"args\":{\"name\":", rank + 1);
  text_json(b, name);
  text_printf(b, "}},\n{\"ph\":\"M\",\"name\":\"process_sort_index\",\"pid\":%d,\"args\":{\"sort_index\":%d}},\n",
              rank + 1, rank);
  text_printf(b, "{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":\"program\"}},\n",
              rank + 1, rank + 1);
}

Status trace_events(TextBuf *b, const TraceRun *run, int rank, const char *name, double zero) {
  Slices s = {.run = run, .zero = zero};
  Status status = find_slices(&s);
  put_names(b, rank, name);
  for (int64_t i = 0; i < s.n && !status; i++) put_slice(b, &s, &s.slice[i], rank);
  free(s.slice);
  return status ? status : b->failed ? fail_oom() : OK;
}

Status trace_write(const char *path, const char *program, const TextBuf *events, bool force) {
  TextBuf b = {0};
  text_puts(&b, "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"program\":");
  text_json(&b, program);
  text_puts(&b, "},\"traceEvents\":[\n");
  if (events->len > 2) text_write(&b, events->text, events->len - 2); /* without the last comma */
  text_puts(&b, "\n]}\n");
  Status s = b.failed ? fail_oom() : file_write_all(path, b.text, b.len, force ? FILE_OVERWRITE : 0);
  text_free(&b);
  return s;
}
