/* group_list.c -- see group_list.h. */
#include "comm/group_list.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/grow.h"

void group_list_free(GroupList *l) {
  arena_free(&l->arena);
  free(l->v);
  *l = (GroupList){0};
}

static Status add(GroupList *l, const char *name, const int *rank, int n) {
  TRY_ROOM(l->v, l->n, l->cap);
  l->v[l->n++] = (GroupRanks){name, rank, n};
  return OK;
}

Status group_list_add_text(GroupList *l, const char *text) {
  const char *equals = strchr(text, '=');
  if (!equals || equals == text || !equals[1])
    return fail(ERR_USAGE, "a group is NAME=0,1,2 or NAME=all, not '%s'", text);
  char *name;
  int *rank, n = 0;
  TRY_NEW(name, arena_strndup(&l->arena, text, (size_t)(equals - text)));
  if (!strcmp(equals + 1, "all")) return add(l, name, NULL, 0);
  TRY_NEW(rank, arena_new_n(&l->arena, int, strlen(equals)));
  for (const char *p = equals; *p;) {
    char *end;
    errno = 0;
    long r = strtol(++p, &end, 10);
    if (end == p || errno || r < 0 || r > INT32_MAX || (*end && *end != ','))
      return fail(ERR_USAGE, "group '%s': ranks are numbers with commas between them, not '%s'", name, equals + 1);
    rank[n++] = (int)r;
    p = end;
  }
  return add(l, name, rank, n);
}

/* [0, 1] */
static Status add_json_ranks(GroupList *l, const char *name, yyjson_val *list, const char *what) {
  int *rank, n = 0;
  size_t i, max;
  yyjson_val *item;
  TRY_NEW(rank, arena_new_n(&l->arena, int, yyjson_arr_size(list)));
  yyjson_arr_foreach(list, i, max, item) {
    int64_t r;
    if (!json_as_int64(item, &r) || r < 0 || r > INT32_MAX)
      return fail(ERR_FILE, "%s: group '%s': element %zu is no rank", what, name, i);
    rank[n++] = (int)r;
  }
  return n ? add(l, name, rank, n) : fail(ERR_FILE, "%s: group '%s' has no ranks", what, name);
}

/* {"tp": [[0, 1], [2, 3]], "dp": ...}; `what` names the source in errors. */
static Status group_list_add_json(GroupList *l, yyjson_val *groups, const char *what) {
  size_t i, max, j, count;
  yyjson_val *key, *lists, *list;
  if (!yyjson_is_obj(groups))
    return fail(ERR_FILE, "%s: 'groups' must be an object: {\"name\": [[0, 1], [2, 3]]}", what);
  TRY(json_check_keys(groups, what));
  yyjson_obj_foreach(groups, i, max, key, lists) {
    char *name;
    TRY_NEW(name, arena_strdup(&l->arena, yyjson_get_str(key)));
    if (!yyjson_is_arr(lists) || !yyjson_arr_size(lists))
      return fail(ERR_FILE, "%s: group '%s' must be a list of lists of ranks", what, name);
    if (!yyjson_is_arr(yyjson_arr_get_first(lists))) {
      TRY(add_json_ranks(l, name, lists, what));
      continue;
    }
    yyjson_arr_foreach(lists, j, count, list) {
      if (!yyjson_is_arr(list))
        return fail(ERR_FILE, "%s: group '%s' must be a list of lists of ranks", what, name);
      TRY(add_json_ranks(l, name, list, what));
    }
  }
  return OK;
}

Status group_list_read(GroupList *l, const char *path) {
  FileMap *f;
  yyjson_doc *doc = NULL;
  TRY(file_map(path, &f));
  Status s = json_parse(path, f->data, f->size, 0, &doc);
  yyjson_val *groups = s ? NULL : yyjson_obj_get(yyjson_doc_get_root(doc), "groups");
  if (groups) s = group_list_add_json(l, groups, path);
  yyjson_doc_free(doc);
  file_map_unref(f);
  return s;
}

Status group_list_check(const GroupList *l, int n) {
  for (int i = 0; i < l->n; i++) {
    for (int j = 0; j < l->v[i].n; j++) {
      int r = l->v[i].rank[j];
      if (r >= n)
        return status_hint(fail(ERR_USAGE, "group '%s' names rank %d; there %s %d rank%s", l->v[i].name, r,
                                n == 1 ? "is" : "are", n, n == 1 ? "" : "s"),
                           "ranks count from 0; a folder has a program for each, rank0.pt2, rank1.pt2 ...");
    }
  }
  return OK;
}

Status group_list_define(const GroupList *l, Groups *g) {
  int n = world_size(groups_world(g)), *all;
  TRY(group_list_check(l, n));
  TRY_NEW(all, malloc((size_t)n * sizeof *all));
  for (int i = 0; i < n; i++) all[i] = i;
  Status s = OK;
  for (int i = 0; i < l->n && !s; i++)
    s = groups_define(g, l->v[i].name, l->v[i].n ? l->v[i].rank : all, l->v[i].n ? l->v[i].n : n);
  free(all);
  return s;
}
