/* pointwise_run.c -- running programs tile by tile; see pointwise.h.
 *
 * A tile is a stretch of elements in the order of the walk's loops.  Loops that are long
 * are cut into tiles; short ones are gathered, several to a tile.  Registers point
 * straight into memory where dtype and stride allow; else inputs are converted into a
 * slot (a buffer of the worker's) and outputs out of one.
 */
#include <stdatomic.h>
#include <string.h>

#include "kernels/convert.h"
#include "kernels/copy.h"
#include "kernels/pointwise.h"
#include "kernels/walk.h"

enum {
  SLOT_BYTES = PW_TILE * 8,
  SHORT_LOOP = 96,          /* innermost loops shorter than this share tiles */
  GRAIN = 1 << 16,          /* element-instructions worth a thread */
  SMALLEST_GRAIN = 1 << 12, /* elements */
  ACROSS_NUMEL = 1 << 12,   /* elements from which on transposed inputs are copied first */
};

typedef void Convert(void *dst, Dtype to, const void *src, Dtype from, int64_t n);

typedef struct {
  int16_t reg;
  Dtype dtype;
  int64_t step; /* bytes, innermost loop */
  char *data;
  bool linear; /* the step holds through all loops */
  bool direct; /* the register may point into memory */
  bool places; /* this operand says where the register is: inputs, and outputs that instructions write */
} Operand;

typedef struct {
  const PwProgram *p;
  Walk walk; /* outputs, then inputs */
  Operand operand[WALK_MAX];
  int nslots;
  int64_t tile;
  int16_t slot[PW_MAX_REGS]; /* -1: none */
  char *scratch;             /* workers x (nslots + 1) slots; the last is for gathering */
  Convert *convert;
  PwStep *step[DT_COUNT]; /* by class */
  atomic_int fault;
} Job;

/* ---- slots ---------------------------------------------------------------------- */

/* Registers get slots by one scan: constants and inputs keep theirs for the whole
 * program, results give theirs back after their last reader. */
static void assign_slots(Job *job) {
  const PwProgram *p = job->p;
  int16_t last[PW_MAX_REGS], spare[PW_MAX_REGS];
  int nspare = 0, n = 0;
  for (int r = 0; r < p->nregs; r++) {
    last[r] = -1;
    job->slot[r] = (int16_t)(p->reg[r].kind == PW_RESULT ? -1 : n++);
  }
  for (int i = 0; i < p->ninstrs; i++) {
    for (int k = 0; k < 3; k++) {
      if (p->instr[i].src[k] >= 0) last[p->instr[i].src[k]] = (int16_t)i;
    }
  }
  for (int k = 0; k < p->noutputs; k++) last[p->output[k]] = INT16_MAX;
  for (int i = 0; i < p->ninstrs; i++) {
    const PwInstr *in = &p->instr[i];
    job->slot[in->dst] = nspare ? spare[--nspare] : (int16_t)n++;
    if (last[in->dst] < 0) spare[nspare++] = job->slot[in->dst]; /* nobody reads it */
    for (int k = 0; k < 3; k++) {
      int r = in->src[k];
      bool again = (k > 0 && r == in->src[0]) || (k > 1 && r == in->src[1]);
      if (r >= 0 && !again && last[r] == i && p->reg[r].kind == PW_RESULT) spare[nspare++] = job->slot[r];
    }
  }
  job->nslots = n;
}

/* ---- loading and storing -------------------------------------------------------- */

/* n elements of an input, from src on, into a register's slot (to: its class). */
static void load(const Job *job, const Operand *o, Dtype to, char *dst, const char *src, int64_t n, char *gather) {
  size_t bytes = dtype_size(o->dtype);
  if (o->step == (int64_t)bytes) {
    job->convert(dst, to, src, o->dtype, n);
  } else if (o->step == 0) {
    _Alignas(16) char one[16];
    job->convert(one, to, src, o->dtype, 1);
    copy_splat(dst, one, dtype_size(to), n);
  } else if (to == o->dtype) {
    copy_strided(dst, (int64_t)bytes, src, o->step, bytes, n);
  } else {
    copy_strided(gather, (int64_t)bytes, src, o->step, bytes, n);
    job->convert(dst, to, gather, o->dtype, n);
  }
}

static void store(const Job *job, const Operand *o, Dtype from, char *dst, const char *src, int64_t n,
                  char *gather) {
  size_t bytes = dtype_size(o->dtype);
  if (o->step == (int64_t)bytes) {
    job->convert(dst, o->dtype, src, from, n);
    return;
  }
  const char *values = src;
  if (from != o->dtype) {
    job->convert(gather, o->dtype, src, from, n);
    values = gather;
  }
  copy_strided(dst, o->step, values, (int64_t)bytes, bytes, n);
}

/* ---- one tile ------------------------------------------------------------------- */

typedef struct {
  const Job *job;
  char *slots, *gather;
  char *at[PW_MAX_REGS]; /* where each register's tile is */
} Worker;

static PwFault run_instrs(Worker *w, int64_t n) {
  const PwProgram *p = w->job->p;
  for (int i = 0; i < p->ninstrs; i++) {
    const PwInstr *in = &p->instr[i];
    const char *x = w->at[in->src[0]];
    if (in->op == PW_CAST) {
      Dtype from = (Dtype)in->klass, by = (Dtype)in->dtype, to = pw_class(by);
      if (by == to) {
        w->job->convert(w->at[in->dst], to, x, from, n);
      } else {
        w->job->convert(w->gather, by, x, from, n);
        w->job->convert(w->at[in->dst], to, w->gather, by, n);
      }
      continue;
    }
    const char *y = in->src[1] >= 0 ? w->at[in->src[1]] : NULL, *z = in->src[2] >= 0 ? w->at[in->src[2]] : NULL;
    PwFault fault = w->job->step[in->klass](in, w->at[in->dst], x, y, z, n);
    if (fault != PW_OK) return fault;
  }
  return PW_OK;
}

/* Calls load or store for the operands [first, end) that are not linear, loop by loop. */
static void each_loop(Worker *w, Cursor *c, int first, int end, int64_t n) {
  const Job *job = w->job;
  for (int64_t done = 0; done < n;) {
    int64_t run = walk_run(&job->walk, c);
    if (run > n - done) run = n - done;
    for (int k = first; k < end; k++) {
      const Operand *o = &job->operand[k];
      if (o->linear) continue;
      Dtype klass = (Dtype)job->p->reg[o->reg].klass;
      char *slot = w->at[o->reg] + done * (int64_t)dtype_size(klass);
      if (first) load(job, o, klass, slot, o->data + c->offset[k], run, w->gather);
      else store(job, o, klass, o->data + c->offset[k], slot, run, w->gather);
    }
    walk_advance(&job->walk, c, run);
    done += run;
  }
}

static char *slot_of(const Worker *w, int reg) { return w->slots + (size_t)w->job->slot[reg] * SLOT_BYTES; }

/* n elements from the cursor on, which goes on to their end. */
static PwFault run_tile(Worker *w, Cursor *c, int64_t n) {
  const Job *job = w->job;
  const PwProgram *p = job->p;
  bool several = n > walk_run(&job->walk, c); /* loops in this tile */
  int nout = p->noutputs, all = nout + p->ninputs;
  for (int k = 0; k < all; k++) {
    const Operand *o = &job->operand[k];
    bool in_one = !several || o->linear;
    if (o->places) w->at[o->reg] = o->direct && in_one ? o->data + c->offset[k] : slot_of(w, o->reg);
    if (k >= nout && in_one && !o->direct && !(o->linear && o->step == 0)) {
      load(job, o, (Dtype)p->reg[o->reg].klass, w->at[o->reg], o->data + c->offset[k], n, w->gather);
    }
  }
  Cursor start = *c;
  if (several) each_loop(w, c, nout, all, n);
  else walk_advance(&job->walk, c, n);
  PwFault fault = run_instrs(w, n);
  if (fault != PW_OK) return fault;
  for (int k = 0; k < nout; k++) {
    const Operand *o = &job->operand[k];
    char *target = o->data + start.offset[k];
    bool in_one = !several || o->linear;
    if (in_one && w->at[o->reg] != target)
      store(job, o, (Dtype)p->reg[o->reg].klass, target, w->at[o->reg], n, w->gather);
  }
  if (several) each_loop(w, &start, 0, nout, n);
  return PW_OK;
}

/* Constants and operands that never change are written to their slots once. */
static void fill_constants(Worker *w, int64_t n) {
  const Job *job = w->job;
  for (int r = 0; r < job->p->nregs; r++) {
    const PwReg *reg = &job->p->reg[r];
    w->at[r] = slot_of(w, r);
    if (reg->kind != PW_CONST) continue;
    union {
      uint8_t b;
      int64_t i;
      float f;
      double d;
      float c[2];
    } e = {0};
    switch ((Dtype)reg->klass) {
      case DT_BOOL: e.b = reg->value.i != 0; break;
      case DT_I64: e.i = reg->value.i; break;
      case DT_F32: e.f = (float)reg->value.re; break;
      case DT_F64: e.d = reg->value.re; break;
      default: e.c[0] = (float)reg->value.re, e.c[1] = (float)reg->value.im; break;
    }
    copy_splat(w->at[r], &e, dtype_size((Dtype)reg->klass), n);
  }
  for (int k = job->p->noutputs; k < job->walk.count; k++) {
    const Operand *o = &job->operand[k];
    if (o->linear && o->step == 0)
      load(job, o, (Dtype)job->p->reg[o->reg].klass, slot_of(w, o->reg), o->data, n, w->gather);
  }
}

static void run_range(void *arg, int64_t begin, int64_t end, int worker) {
  Job *job = arg;
  Worker w = {.job = job, .slots = job->scratch + (size_t)worker * (size_t)(job->nslots + 1) * SLOT_BYTES};
  w.gather = w.slots + (size_t)job->nslots * SLOT_BYTES;
  fill_constants(&w, end - begin < PW_TILE ? end - begin : PW_TILE);
  Cursor c;
  walk_seek(&job->walk, begin, &c);
  bool shared = job->walk.ndim > 1 && job->walk.size[0] < SHORT_LOOP;
  while (begin < end) {
    int64_t n = end - begin, run = walk_run(&job->walk, &c);
    if (n > job->tile) n = job->tile;
    if (!shared && n > run) n = run;
    PwFault fault = run_tile(&w, &c, n);
    if (fault != PW_OK) {
      atomic_store(&job->fault, (int)fault);
      return;
    }
    begin += n;
  }
}

/* ---- the whole ------------------------------------------------------------------ */

static bool is_linear(const Walk *w, int k) {
  for (int d = 0; d + 1 < w->ndim; d++) {
    if (w->stride[k][d + 1] != w->stride[k][d] * w->size[d]) return false;
  }
  return true;
}

static void bind_operands(Job *job, const View *out, const View *in) {
  const PwProgram *p = job->p;
  walk_init(&job->walk, out[0].ndim, out[0].size);
  for (int k = 0; k < p->noutputs; k++) walk_add(&job->walk, out[k]);
  for (int k = 0; k < p->ninputs; k++) walk_add(&job->walk, in[k]);
  walk_plan(&job->walk);
  bool taken[PW_MAX_REGS] = {false};
  int k = 0;
  for (; k < p->noutputs; k++) {
    int16_t r = p->output[k];
    job->operand[k] = (Operand){
        .reg = r, .dtype = out[k].dtype, .data = out[k].data, .places = p->reg[r].kind == PW_RESULT && !taken[r]};
    taken[r] = true;
  }
  for (int r = 0; r < p->nregs; r++) {
    if (p->reg[r].kind != PW_INPUT) continue;
    const View *v = &in[p->reg[r].input];
    job->operand[k++] = (Operand){.reg = (int16_t)r, .dtype = v->dtype, .data = v->data, .places = true};
  }
}

/* How each operand is reached, once the loops are settled. */
static void place_operands(Job *job) {
  const PwProgram *p = job->p;
  bool whole = p->ninstrs == 1 && p->instr[0].op != PW_CAST && p->nregs == p->ninputs + 1 && job->walk.ndim <= 1;
  for (int k = 0; k < job->walk.count; k++) {
    Operand *o = &job->operand[k];
    o->step = walk_step(&job->walk, k);
    o->linear = is_linear(&job->walk, k);
    Dtype klass = (Dtype)p->reg[o->reg].klass;
    bool one = job->walk.ndim == 0;
    o->direct = o->places && o->dtype == klass && (one || o->step == (int64_t)dtype_size(klass));
    whole = whole && o->direct;
  }
  job->tile = whole ? INT64_MAX : PW_TILE; /* nothing passes through a slot: no need to stop */
}

static PwStep *choose_step(Dtype klass, Isa isa) {
  switch (klass) {
    case DT_BOOL: return SIMD_CALL(isa, pw_step_bool);
    case DT_I64: return SIMD_CALL(isa, pw_step_i64);
    case DT_F32: return SIMD_CALL(isa, pw_step_f32);
    case DT_F64: return SIMD_CALL(isa, pw_step_f64);
    default: return SIMD_CALL(isa, pw_step_c64);
  }
}

bool pw_knows(PwOp op, Dtype klass) { /* a step with nothing to do still says what it does not know */
  PwInstr in = {.op = (uint8_t)op};
  return op == PW_CAST || choose_step(klass, ISA_BASE)(&in, NULL, NULL, NULL, NULL, 0) != PW_UNKNOWN;
}

/* An input that runs along another loop than the output would miss the cache with every
 * element: it is copied first, in blocks, to the order of the output's loops. */
static bool runs_across(const Walk *w, int operand, Dtype d) {
  int64_t bytes = (int64_t)dtype_size(d);
  if (w->numel < ACROSS_NUMEL || w->size[0] < 8 || w->stride[operand][0] <= 2 * bytes) return false;
  for (int l = 1; l < w->ndim; l++) {
    if (w->stride[operand][l] == bytes && w->size[l] >= 8) return true;
  }
  return false;
}

static Status straighten(Kern *k, Job *job) {
  Walk *w = &job->walk;
  bool any = false;
  for (int i = job->p->noutputs; i < w->count; i++) {
    Operand *o = &job->operand[i];
    if (!runs_across(w, i, o->dtype)) continue;
    int64_t size[MAX_DIMS], from[MAX_DIMS], to[MAX_DIMS], step = 1, bytes = (int64_t)dtype_size(o->dtype);
    for (int l = 0; l < w->ndim; l++) { /* loop l is dimension ndim - 1 - l; repeated loops stay so */
      int d = w->ndim - 1 - l;
      bool repeated = w->stride[i][l] == 0;
      size[d] = repeated ? 1 : w->size[l];
      from[d] = w->stride[i][l] / bytes;
      to[d] = repeated ? 0 : step;
      step *= size[d];
      w->stride[i][l] = to[d] * bytes;
    }
    char *copy;
    TRY_NEW(copy, kern_scratch(k, (size_t)(step * bytes)));
    kernel_copy(k, (View){copy, size, to, w->ndim, o->dtype}, (View){o->data, size, from, w->ndim, o->dtype});
    o->data = copy;
    any = true;
  }
  if (any) walk_plan(w);
  return OK;
}

static Status run_job(Kern *k, Job *job) {
  const PwProgram *p = job->p;
  TRY(straighten(k, job));
  place_operands(job);
  assign_slots(job);
  job->convert = SIMD_CALL(k->isa, convert_run);
  for (int i = 0; i < p->ninstrs; i++) job->step[p->instr[i].klass] = choose_step((Dtype)p->instr[i].klass, k->isa);
  int64_t grain = GRAIN / (p->ninstrs + 1);
  if (grain < SMALLEST_GRAIN) grain = SMALLEST_GRAIN;
  int workers = parallel_workers(k->threads, job->walk.numel, grain);
  TRY_NEW(job->scratch, kern_scratch(k, (size_t)workers * (size_t)(job->nslots + 1) * SLOT_BYTES));
  parallel_for(k->threads, job->walk.numel, grain, run_range, job);
  switch ((PwFault)atomic_load(&job->fault)) {
    case PW_ZERO_DIVISION: return fail(ERR_FAIL, "integer division by zero");
    case PW_UNKNOWN: return fail(ERR_FAIL, "this operation is not known for this dtype");
    default: return OK;
  }
}

static bool broadcasts(const View *v, const View *to) {
  if (v->ndim > to->ndim) return false;
  for (int d = 1; d <= v->ndim; d++) {
    int64_t n = v->size[v->ndim - d];
    if (n != 1 && n != to->size[to->ndim - d]) return false;
  }
  return true;
}

/* I4, and views are of the dtypes that the program is written for. */
static Status check_operands(const PwProgram *p, const View *out, const View *in) {
  for (int i = 0; i < p->noutputs; i++) {
    bool same = out[i].ndim == out[0].ndim;
    for (int d = 0; same && d < out[0].ndim; d++) same = out[i].size[d] == out[0].size[d];
    if (!same) return fail(ERR_FAIL, "results of a pointwise program differ in size");
    if (pw_class(out[i].dtype) != (Dtype)p->reg[p->output[i]].klass || !dtype_is_compute(out[i].dtype))
      return fail(ERR_FAIL, "a pointwise program gives no %s", dtype_name(out[i].dtype));
  }
  for (int r = 0; r < p->nregs; r++) {
    if (p->reg[r].kind != PW_INPUT) continue;
    const View *v = &in[p->reg[r].input];
    char a[128], b[128];
    if (v->dtype != (Dtype)p->reg[r].dtype || !dtype_is_compute(v->dtype))
      return fail(ERR_FAIL, "a pointwise program takes no %s here", dtype_name(v->dtype));
    if (!broadcasts(v, &out[0]))
      return fail(ERR_FAIL, "size %s does not broadcast to %s", shape_describe(v->ndim, v->size, a, sizeof a),
                  shape_describe(out[0].ndim, out[0].size, b, sizeof b));
  }
  return OK;
}

Status kernel_pointwise(Kern *k, const PwProgram *p, const View *out, const View *in) {
  if (p->too_long || p->noutputs + p->ninputs > WALK_MAX)
    return fail(ERR_FAIL, "a pointwise program has too many instructions or operands");
  TRY(check_operands(p, out, in));
  Job job;
  job.p = p;
  atomic_init(&job.fault, PW_OK);
  bind_operands(&job, out, in);
  if (job.walk.numel == 0) return OK;
  size_t mark = kern_mark(k);
  Status s = run_job(k, &job);
  kern_release(k, mark);
  return s;
}
