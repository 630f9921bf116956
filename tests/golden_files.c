/* golden_files.c -- see golden_files.h. */
#include "golden_files.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "pt2/read.h"
#include "rank_files/write_folder.h"
#include "runtime/ranks.h"

enum { PATH_CAP = 4096 };

typedef struct {
  char folder[PATH_CAP];
  FolderInputs cuts;
  FileCallsFn *calls;
  void *arg;
} Files;

static Status on_rank(Ctx *ctx, World *w, void *arg) {
  const Files *f = arg;
  char path[PATH_CAP + 32];
  Exported *e;
  Session *session;
  snprintf(path, sizeof path, "%s/rank%d.pt2", f->folder, world_rank(w));
  TRY(pt2_read(path, &e));
  TRY(session_open(ctx, e, &session));
  Status s = f->calls(f->arg, ctx, session, world_rank(w), &f->cuts);
  session_free(session);
  return s;
}

static Status cut(Files *f, const char *program, const char *mesh, const char *plan_path, int *ranks) {
  PlanFile *plan;
  Exported *e;
  Partition *c;
  TRY(plan_file_read(plan_path, &plan));
  Status s = pt2_read(program, &e);
  if (!s) s = partition_open(e, mesh, plan, NULL, &c);
  if (!s) {
    *ranks = c->mesh->size;
    s = partition_write(c, plan, &(FolderOptions){.folder = f->folder});
    partition_free(c);
  }
  plan_file_free(plan);
  return s;
}

static Status run(Files *f, int ranks) {
  char path[PATH_CAP + 32];
  GroupList groups = {0};
  snprintf(path, sizeof path, "%s/plan.json", f->folder);
  TRY(folder_inputs_read(path, &f->cuts));
  Status s = group_list_read(&groups, path);
  if (!s) s = ranks_run(&(Ranks){.n = ranks, .threads = 1, .groups = &groups}, on_rank, f);
  group_list_free(&groups);
  folder_inputs_free(&f->cuts);
  return s;
}

static void remove_folder(const char *folder) {
  DIR *d = opendir(folder);
  for (struct dirent *e; d && (e = readdir(d));) unlinkat(dirfd(d), e->d_name, 0);
  if (d) closedir(d);
  rmdir(folder);
}

Status golden_files(const char *program, const char *mesh, const char *plan, FileCallsFn *calls, void *arg) {
  const char *temp = getenv("TMPDIR");
  Files f = {.calls = calls, .arg = arg};
  int ranks = 0;
  snprintf(f.folder, sizeof f.folder, "%s/golden_files-XXXXXX", temp ? temp : "/tmp");
  if (!mkdtemp(f.folder)) return fail(ERR_FAIL, "no temporary folder in %s", temp ? temp : "/tmp");
  Status s = cut(&f, program, mesh, plan, &ranks);
  if (!s) s = run(&f, ranks);
  remove_folder(f.folder);
  return s;
}
