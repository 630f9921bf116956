/* op_cases.c -- see op_cases.h. */
#include "op_cases.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"

static struct {
  OpCase *list;
  int n, cap;
  bool read;
} all;

static void add_line(const char *text, size_t size, const SafeTensors *data) {
  yyjson_doc *doc;
  Status s = json_parse("golden", text, size, JSON_NAN, &doc);
  if (!s && all.n == all.cap) {
    all.cap = all.cap * 2 + 64;
    all.list = realloc(all.list, (size_t)all.cap * sizeof *all.list);
    if (!all.list) abort();
  }
  if (!s) all.list[all.n++] = (OpCase){yyjson_doc_get_root(doc), data};
  status_free(s);
}

static void add_family(const char *folder, const char *family) {
  char path[4096];
  SafeTensors *data;
  FileMap *lines;
  snprintf(path, sizeof path, "%s/%s.safetensors", folder, family);
  if (!file_exists(path)) return;
  Status s = safetensors_open(path, &data);
  snprintf(path, sizeof path, "%s/%s.jsonl", folder, family);
  if (!s) s = file_map(path, &lines);
  if (s) {
    fprintf(stderr, "%s\n", status_message(s));
    abort();
  }
  const char *at = (const char *)lines->data, *end = at + lines->size;
  for (const char *stop; at < end; at = stop + 1) {
    stop = memchr(at, '\n', (size_t)(end - at));
    if (!stop) stop = end;
    if (stop > at) add_line(at, (size_t)(stop - at), data);
  }
  file_map_unref(lines);
}

int op_cases(const OpCase **out) {
  DIR *d = all.read ? NULL : opendir(GOLDEN_FOLDER "/ops");
  all.read = true;
  for (struct dirent *e; d && (e = readdir(d));) {
    char *dot = strstr(e->d_name, ".jsonl");
    if (!dot) continue;
    *dot = 0;
    add_family(GOLDEN_FOLDER "/ops", e->d_name);
  }
  if (d) closedir(d);
  *out = all.list;
  return all.n;
}
