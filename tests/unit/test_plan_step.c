/* test_plan_step.c -- what `tessera plan --train` tells of a training step is what trainers on ranks have: memory
 * to the byte, collectives by number. */
#include "dist/dispatch.h"
#include "dist/dist.h"
#include "harness/load.h"
#include "passes/started.h"
#include "report/plan_report.h"
#include "runtime/feed_sizes.h"
#include "runtime/ranks.h"
#include "train/settings.h"
#include "train/trainer.h"
#include "unit.h"

/* Bytes of what a rank holds, and collectives of its step. */
typedef struct {
  int64_t slab, gradients, weights, optimizer;
  int started, others;
} Held;

typedef struct {
  const char *model, *mesh, *optim, *memory, *fsdp;
  bool local, whole_updates;
  int accumulate; /* 0: 1 */
  int rank;
  Prepared *step;
  Value *inputs;
  int ninputs;
  Held held; /* by the rank of that number */
} Case;

static void count_states(const Trainer *t, Held *h) {
  int n = trainer_states(t, NULL);
  TrainState *state = calloc((size_t)n + 1, sizeof *state);
  trainer_states(t, state);
  for (int i = 0; i < n; i++) {
    int64_t bytes = tensor_numel(state[i].tensor) * (int64_t)dtype_size(state[i].tensor->dtype);
    bool told = false;
    for (int j = 0; j < i; j++) told |= state[j].tensor->storage == state[i].tensor->storage;
    if (told) continue;
    if (!state[i].is_model) h->optimizer += bytes;
    else if (state[i].is_parameter) h->weights += bytes;
  }
  free(state);
}

/* The last that is looked at is the one whose collectives are told one by one. */
static Status look_at(const Case *c, Trainer *t, Phase phase, Held *h) {
  Program *p;
  TRY(trainer_program_of(t, phase, &(Batch){c->inputs, c->ninputs}, &p));
  h->slab += (int64_t)p->slab_bytes;
  h->gradients += (int64_t)p->gradient_bytes;
  h->started = h->others = 0;
  for (int i = 0; i < p->ninstrs; i++) {
    h->started += node_starts(p->instrs[i].node);
    h->others += node_is(p->instrs[i].node, "tess.redistribute.default");
  }
  return OK;
}

static Status look(const Case *c, Trainer *t, Held *h) {
  if (c->memory) {
    MemoryLimit limit;
    TRY(memory_limit_parse(c->memory, &limit));
    session_limit_memory(trainer_session(t), limit);
  }
  if (c->accumulate > 1) { /* programs of their own, with memory of their own */
    TRY(look_at(c, t, PHASE_FIRST, h));
    TRY(look_at(c, t, PHASE_MORE, h));
  }
  TRY(look_at(c, t, c->accumulate > 1 ? PHASE_LAST : PHASE_STEP, h));
  count_states(t, h);
  return OK;
}

static Status train_rank(Ctx *ctx, World *w, void *arg) {
  Case *c = arg;
  Held h = {0};
  Dist *dist;
  Mesh *mesh;
  Trainer *t = NULL;
  TRY(dist_new(w, &dist));
  ctx_attach_dist(ctx, dist);
  Status s = mesh_parse(dist, c->mesh, &mesh);
  if (!s) s = trainer_open_on(ctx, c->step, mesh, &t);
  if (!s) s = look(c, t, &h);
  if (!s && world_rank(w) == c->rank) c->held = h;
  trainer_free(t);
  ctx_detach_dist(ctx);
  dist_free(dist);
  return s;
}

static void compare(const Case *c, const PlanReport *r) {
  int started = 0, others = 0;
  for (int i = 0; i < r->nmoves; i++) *(r->move[i].started ? &started : &others) += 1;
  assert_int_equal(r->rank_total.activations, c->held.slab);
  assert_int_equal(r->rank_total.gradients, c->held.gradients);
  assert_int_equal(r->rank_total.weights, c->held.weights);
  assert_int_equal(r->rank_total.optimizer, c->held.optimizer);
  assert_int_equal(started, c->held.started);
  assert_int_equal(others, c->held.others);
  int64_t most = 0;
  for (int i = 0; i < r->step.nmemory; i++) {
    const PlanMemoryAt *m = &r->step.memory[i];
    if (m->saved + m->gradients + m->other > most) most = m->saved + m->gradients + m->other;
  }
  /* What is in use at once is what the layout of memory cannot do without. */
  assert_true(most > 0 && most <= c->held.slab + c->held.gradients);
  assert_true(r->step.saved > 0 && r->step.gradients > 0);
}

/* The prediction adds up: computing, what is exposed, and no rank waits for more than there is. */
static void check_times(const PlanReport *r) {
  const PlanTotals *t = &r->rank_total;
  double stages = r->step.stage[0] + r->step.stage[1] + r->step.stage[2];
  assert_true(t->exposed >= 0 && t->exposed <= t->communicate * (1 + 1e-9));
  assert_true(stages > 0.999 * (t->compute + t->exposed) && stages < 1.001 * (t->compute + t->exposed));
  for (int i = 0; i < r->step.nspans; i++) assert_true(r->step.span[i].end >= r->step.span[i].begun);
}

static Status report(const Case *c, const Machine *machine, PlanReport **out) {
  PlanRequest r = {.mesh = c->mesh,
                   .step = c->step,
                   .inputs = c->inputs,
                   .ninputs = c->ninputs,
                   .machine = machine,
                   .rank = c->rank};
  if (c->memory) TRY(memory_limit_parse(c->memory, &r.memory));
  return plan_report(c->step->program, &r, out);
}

static void prepare_case(Case *c, Ctx *ctx, const PlanFile *plan, Arena *arena, Scope *scope) {
  char path[1024];
  Exported *e;
  Recipe *recipe = arena_new(arena, Recipe);
  SymBindings b;
  snprintf(path, sizeof path, GOLDEN_FOLDER "/train/%s/forward.pt2", c->model);
  assert_ok(program_load(path, NULL, &e));
  assert_ok(settings_recipe(&(TrainSettings){.optim = c->optim, .clip = "1.0", .accumulate = c->accumulate}, arena,
                            recipe));
  const TrainerPlan how = {.recipe = recipe,
                           .mesh = c->mesh,
                           .plan = plan,
                           .fsdp = c->fsdp,
                           .local = c->local,
                           .whole_updates = c->whole_updates};
  assert_ok(trainer_prepare(ctx, e, &how, &c->step));
  assert_ok(feed_symbols(c->step->program, true, &b));
  assert_ok(feed_sizes(c->step->program, &b, scope, arena, &c->inputs, &c->ninputs));
  free(b.v);
}

static void check_case(Case c, int ranks) {
  Arena arena = {0};
  Scope scope = {0};
  PlanFile *plan;
  Machine machine;
  PlanReport *r;
  Ctx ctx;
  ctx_init(&ctx, 1);
  assert_ok(plan_file_read("auto", &plan));
  assert_ok(machine_find("cpu2", &machine));
  prepare_case(&c, &ctx, plan, &arena, &scope);
  assert_ok(ranks_run(&(Ranks){.n = ranks, .threads = 1}, train_rank, &c));
  assert_ok(report(&c, &machine, &r));
  compare(&c, r);
  check_times(r);
  plan_report_free(r);
  prepared_unref(c.step);
  plan_file_free(plan);
  scope_clear(&scope);
  arena_free(&arena);
  ctx_free(&ctx);
}

static void test_memory_of_ranks(void **state) {
  (void)state;
  check_case((Case){.model = "gpt_tied", .mesh = "dp=2,tp=2", .optim = "adamw"}, 4);
  check_case((Case){.model = "gpt_tied", .mesh = "dp=2,tp=2", .optim = "adamw", .rank = 3}, 4);
  check_case((Case){.model = "gpt_tied", .mesh = "tp=3", .optim = "muon"}, 3);
  check_case((Case){.model = "gpt_tied", .mesh = "dp=2", .optim = "sgd,lr=0.1,momentum=0.9", .memory = "100%"}, 2);
  check_case((Case){.model = "gpt_tied", .mesh = "dp=2,tp=2", .optim = "adamw", .fsdp = ""}, 4);
  check_case((Case){.model = "gpt_tied", .mesh = "replica=2,dp=2", .optim = "adamw", .fsdp = "dp"}, 4);
  check_case((Case){.model = "mlp_ce", .mesh = "dp=3", .optim = "adamw"}, 3);
  check_case((Case){.model = "cnn_bn", .mesh = "dp=2", .optim = "adamw"}, 2);
  check_case((Case){.model = "gpt_tied", .mesh = "dp=2", .optim = "adamw", .whole_updates = true}, 2);
  for (int rank = 0; rank < 5; rank++) /* some have no rows of a parameter of 16 */
    check_case((Case){.model = "gpt_tied", .mesh = "dp=5", .optim = "muon", .rank = rank}, 5);
}

static void test_memory_of_micro_batches(void **state) {
  (void)state;
  Case c = {.model = "gpt_tied", .mesh = "dp=2,tp=2", .optim = "adamw", .accumulate = 3};
  check_case(c, 4);
  c.whole_updates = true;
  check_case(c, 4);
  c.whole_updates = false, c.local = true;
  check_case(c, 4);
  c.memory = "100%";
  check_case(c, 4);
}

static void test_memory_of_ranks_with_own_rows(void **state) {
  (void)state;
  Case c = {.model = "gpt_tied", .mesh = "dp=2", .optim = "adamw", .local = true};
  check_case(c, 2);
  c.whole_updates = true;
  check_case(c, 2);
  check_case((Case){.model = "gpt_tied", .mesh = "dp=2,tp=2", .optim = "adamw", .local = true}, 4);
  check_case((Case){.model = "cnn_bn", .mesh = "dp=2", .optim = "sgd", .fsdp = "", .local = true}, 2);
}

/* More ranks than anybody has here: nothing is asked of them. */
static void test_many_ranks(void **state) {
  (void)state;
  Case c = {.model = "gpt_tied", .mesh = "dp=64,tp=64", .optim = "adamw", .rank = 4095};
  Arena arena = {0};
  Scope scope = {0};
  PlanFile *plan;
  PlanReport *r;
  Ctx ctx;
  ctx_init(&ctx, 1);
  assert_ok(plan_file_read("auto", &plan));
  prepare_case(&c, &ctx, plan, &arena, &scope);
  assert_ok(report(&c, NULL, &r));
  assert_int_equal(r->ranks, 4096);
  assert_true(r->step.nspans > 0 && r->rank_total.exposed == 0);
  plan_report_free(r);
  prepared_unref(c.step);
  plan_file_free(plan);
  scope_clear(&scope);
  arena_free(&arena);
  ctx_free(&ctx);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_memory_of_ranks), cmocka_unit_test(test_memory_of_ranks_with_own_rows),
      cmocka_unit_test(test_memory_of_micro_batches), cmocka_unit_test(test_many_ranks)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
