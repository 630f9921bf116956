/* Any bytes as a plan, which is then laid over a small program, and as a machine, which
 * prints and reads back as the same. */
#include <stdlib.h>
#include <string.h>

#include "report/plan_report.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char program[] = "symbol s0 in [1, 8] hint 4\n"
                              "graph(%e: f32[10,6] = parameter \"embed.weight\", %w: f32[12,6] = parameter "
                              "\"layers.0.up.weight\", %b: f32[12] = parameter \"layers.0.up.bias\",\n"
                              "      %v: f32[6,12] = parameter \"layers.0.down.weight\", %cache: f32[4,6] = buffer "
                              "\"cache\", %ids: i64[s0,5] = user) {\n"
                              "  %x: f32[s0,5,6] = aten.embedding.default(%e, %ids)\n"
                              "  %y: f32[s0,5,12] = aten.linear.default(%x, %w, %b)\n"
                              "  %h: f32[s0,5,4,3] = aten.view.default(%y, [-1, 5, 4, 3])\n"
                              "  %g: f32[s0,5,4,3] = aten.gelu.default(%h)\n"
                              "  %f: f32[s0,5,12] = aten.view.default(%g, [-1, 5, 12])\n"
                              "  %z: f32[s0,5,6] = aten.linear.default(%f, %v)\n"
                              "  %o: f32[s0,5,6] = aten.add.Tensor(%z, %x)\n"
                              "  return user %o\n}\n";

static void lay_over(const PlanFile *plan, const Machine *machine) {
  Exported *e;
  Ctx ctx;
  Scope scope = {0};
  Tensor *ids;
  PlanReport *r = NULL;
  TextBuf b = {0};
  Status s = graph_parse(program, sizeof program - 1, "program", &e);
  if (s) abort();
  ctx_init(&ctx, 1);
  s = plan_report_prepare(&ctx, e);
  if (!s) s = tensor_meta(&scope, DT_I64, 2, (int64_t[]){4, 5}, &ids);
  if (s) abort();
  Value input = val_tensor(ids);
  s = plan_report(
      e, &(PlanRequest){.mesh = "dp=2,tp=3", .plan = plan, .inputs = &input, .ninputs = 1, .machine = machine}, &r);
  if (!s) plan_report_text(&b, r, (PlanTextOptions){.nodes = true, .weights = true});
  status_free(s);
  text_free(&b);
  plan_report_free(r);
  scope_clear(&scope);
  ctx_free(&ctx);
  exported_free(e);
}

static void read_back(const Machine *m) {
  TextBuf b = {0};
  Machine again;
  machine_print(&b, m);
  Status s = b.failed ? OK : machine_parse("printed", b.text, b.len, &again);
  if (s || again.nlinks != m->nlinks) abort();
  text_free(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  PlanFile *plan = NULL;
  Machine machine;
  Status s = machine_parse("machine.json", (const char *)data, size, &machine);
  if (!s) read_back(&machine);
  if (!s) lay_over(NULL, &machine);
  status_free(s);
  s = plan_file_parse("plan.json", (const char *)data, size, &plan);
  if (!s) lay_over(plan, NULL);
  status_free(s);
  plan_file_free(plan);
  return 0;
}
