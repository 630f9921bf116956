/* passes -- what the passes on collectives cost, on a graph with many gradients.
 *
 *     build/bench/passes [--json] [GRADIENTS]...
 *
 * The graph is a chain of N steps; each makes a gradient of 16,384 f32 (64 KiB), which is
 * divided, reduced and waited for: five nodes per gradient.  Times are those of a pass with the
 * verifier behind it, in milliseconds, best of several rounds, each on a fresh graph.  The
 * script bench/passes runs it beside PyTorch's passes.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "passes/pass.h"

enum { ROUNDS = 7 };

static const char *const lists[] = {"fuse_ddp_with_concat_op", "fuse_ddp_with_coalesced_op", "schedule_comm_wait",
                                    "overlap", "fuse_ddp_with_concat_op,schedule_comm_wait"};
enum { LISTS = sizeof lists / sizeof *lists };

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static void must(Status s) {
  if (!s) return;
  fprintf(stderr, "passes: %s\n", status_message(s));
  exit(1);
}

static char *write_graph(int n, size_t *len) {
  TextBuf b = {0};
  const char *type = "f32[128,128]";
  text_printf(&b, "graph(%%x0: %s = user) {\n", type);
  for (int i = 0; i < n; i++) {
    text_printf(&b, "  %%x%d: %s = aten.sin.default(%%x%d)\n", i + 1, type, i);
    text_printf(&b, "  %%g%d: %s = aten.neg.default(%%x%d)\n", i, type, i + 1);
    text_printf(&b, "  %%d%d: %s = aten.div.Tensor(%%g%d, 2)\n", i, type, i);
    text_printf(&b, "  %%r%d: %s = _c10d_functional.all_reduce.default(%%d%d, \"sum\", \"0\")\n", i, type, i);
    text_printf(&b, "  %%w%d: %s = _c10d_functional.wait_tensor.default(%%r%d)\n", i, type, i);
  }
  text_puts(&b, "  return ");
  for (int i = 0; i < n; i++) text_printf(&b, "%suser %%w%d", i ? ", " : "", i);
  text_puts(&b, "\n}\n");
  if (b.failed) must(fail_oom());
  *len = b.len;
  return b.text;
}

static double time_list(Ctx *ctx, const char *text, size_t len, const char *list) {
  double best = 1e30;
  for (int r = 0; r < ROUNDS; r++) {
    Exported *e;
    must(graph_parse(text, len, "bench", &e));
    double begin = now();
    must(pass_run_list(e, list, ctx, NULL));
    double t = now() - begin;
    exported_free(e);
    if (t < best) best = t;
  }
  return best;
}

int main(int argc, char **argv) {
  bool json = argc > 1 && !strcmp(argv[1], "--json");
  int sizes[16] = {1000, 10000, 100000}, nsizes = 3, given = 0;
  for (int i = json ? 2 : 1; i < argc && given < 16; i++) sizes[given++] = atoi(argv[i]);
  if (given) nsizes = given;
  Ctx ctx;
  ctx_init(&ctx, 1);
  if (json) printf("{");
  for (int k = 0; k < nsizes; k++) {
    size_t len;
    char *text = write_graph(sizes[k], &len);
    if (json) printf("%s\"%d\": {", k ? ", " : "", sizes[k]);
    else printf("%d gradients, %d nodes\n", sizes[k], 5 * sizes[k]);
    for (int i = 0; i < LISTS; i++) {
      double ms = time_list(&ctx, text, len, lists[i]);
      if (json) printf("%s\"%s\": %.4f", i ? ", " : "", lists[i], ms);
      else printf("  %-46s %9.3f ms, %6.0f ns per node\n", lists[i], ms, ms * 1e6 / 5 / sizes[k]);
    }
    if (json) printf("}");
    free(text);
  }
  if (json) printf("}\n");
  ctx_free(&ctx);
  return 0;
}
