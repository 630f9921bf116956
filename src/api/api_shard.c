/* api_shard.c -- public functions: programs cut into ranks. */
#include <string.h>

#include "api/api.h"
#include "pt2/read.h"
#include "pt2/write.h"
#include "rank_files/write_folder.h"

Status api_read_plan(const char *plan, PlanFile **out) {
  const char *text = plan ? plan + strspn(plan, " \t\r\n") : NULL;
  if (text && *text == '{') return plan_file_parse("plan", text, strlen(text), out);
  return plan_file_read(plan ? plan : "auto", out);
}

static Status open_cut(const TessCut *what, const PlanFile *plan, Partition **out) {
  Exported *e;
  const char *mesh = what->mesh ? what->mesh : plan->mesh;
  if (!mesh) return fail(ERR_USAGE, "no mesh is given, and the plan tells none");
  if (!what->program) return fail(ERR_USAGE, "no program is given");
  TRY(pt2_read(what->program, &e));
  TRY(partition_open(e, mesh, plan, NULL, out));
  (*out)->half_sums = what->half_sums;
  Status s = partition_fix_sizes(*out, what->sizes);
  if (s) partition_free(*out);
  return s;
}

static Status write_folder(const TessCut *what, const char *folder, bool force, TextBuf *report) {
  PlanFile *plan;
  Partition *c;
  TRY(api_read_plan(what->plan, &plan));
  Status s = open_cut(what, plan, &c);
  if (!s) {
    s = partition_write(c, plan, &(FolderOptions){.folder = folder, .force = force, .report = report});
    partition_free(c);
  }
  plan_file_free(plan);
  return s;
}

char *tess_shard(TessCtx *ctx, const TessCut *cut, const char *folder, int force) {
  TextBuf report = {0};
  if (!API_BEGIN(ctx, GIVEN("the cut", cut), GIVEN("the folder", folder))) return NULL;
  Status s = write_folder(cut, folder, force, &report);
  if (!s && (report.failed || !report.text)) s = fail_oom();
  if (!api_stick(ctx, s)) return report.text;
  text_free(&report);
  return NULL;
}

static Status write_file(Partition *c, int rank, const char *path) {
  Exported *e;
  RankFacts facts;
  TRY(partition_rank(c, rank, &e, &facts));
  Status s = pt2_write(e, path, false);
  exported_free(e);
  rank_facts_free(&facts);
  return s;
}

static Status write_rank(const TessCut *what, int rank, const char *path) {
  PlanFile *plan;
  Partition *c;
  TRY(api_read_plan(what->plan, &plan));
  Status s = open_cut(what, plan, &c);
  if (!s) {
    s = write_file(c, rank, path);
    partition_free(c);
  }
  plan_file_free(plan);
  return s;
}

int tess_shard_rank(TessCtx *ctx, const TessCut *cut, int rank, const char *path) {
  if (!API_BEGIN(ctx, GIVEN("the cut", cut), GIVEN("the path", path))) return -1;
  return api_stick(ctx, write_rank(cut, rank, path)) ? -1 : 0;
}
