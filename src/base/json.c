/* json.c -- see json.h. */
#include "base/json.h"

#include <stdlib.h>
#include <string.h>

/* yyjson itself does not recurse, but what reads its result does (I1). */
static bool too_deep(const char *text, size_t size, size_t *where) {
  int depth = 0;
  bool quoted = false;
  for (size_t i = 0; i < size; i++) {
    char c = text[i];
    if (quoted) {
      if (c == '\\') i++;
      else if (c == '"') quoted = false;
    } else if (c == '"') {
      quoted = true;
    } else if (c == '[' || c == '{') {
      *where = i;
      if (++depth > JSON_MAX_DEPTH) return true;
    } else if (c == ']' || c == '}') {
      depth--;
    }
  }
  return false;
}

static Status fail_at(const char *what, const char *text, size_t size, size_t where, const char *reason) {
  size_t line = 0, column = 0, chars = 0;
  if (where <= size && yyjson_locate_pos(text, size, where, &line, &column, &chars)) {
    return fail(ERR_FILE, "%s: not valid JSON: %s at line %zu, column %zu", what, reason, line, column);
  }
  return fail(ERR_FILE, "%s: not valid JSON: %s at byte %zu", what, reason, where);
}

Status json_parse(const char *what, const void *data, size_t size, unsigned flags, yyjson_doc **out) {
  const char *text = data;
  size_t where = 0;
  if (size == 0) return fail(ERR_FILE, "%s: not valid JSON: it is empty", what);
  if (too_deep(text, size, &where)) return fail_at(what, text, size, where, "it nests too deeply");
  yyjson_read_err err = {0};
  yyjson_read_flag read = flags & JSON_NAN ? YYJSON_READ_ALLOW_INF_AND_NAN : YYJSON_READ_NOFLAG;
  yyjson_doc *doc = yyjson_read_opts((char *)(uintptr_t)text, size, read, NULL, &err);
  if (!doc && err.code == YYJSON_READ_ERROR_MEMORY_ALLOCATION) return fail_oom();
  if (!doc) return fail_at(what, text, size, err.pos, err.msg);
  *out = doc;
  return OK;
}

static Status fail_type(yyjson_val *v, const char *key, const char *what, const char *want) {
  return fail(ERR_FILE, "%s: '%s' must be %s, it is %s", what, key, want, yyjson_get_type_desc(v));
}

Status json_member(yyjson_val *object, const char *key, const char *what, yyjson_val **out) {
  if (!yyjson_is_obj(object))
    return fail(ERR_FILE, "%s: expected an object with '%s', found %s", what, key, yyjson_get_type_desc(object));
  *out = yyjson_obj_get(object, key);
  return *out ? OK : fail(ERR_FILE, "%s: '%s' is missing", what, key);
}

Status json_object(yyjson_val *object, const char *key, const char *what, yyjson_val **out) {
  TRY(json_member(object, key, what, out));
  return yyjson_is_obj(*out) ? OK : fail_type(*out, key, what, "an object");
}

Status json_array(yyjson_val *object, const char *key, const char *what, yyjson_val **out) {
  TRY(json_member(object, key, what, out));
  return yyjson_is_arr(*out) ? OK : fail_type(*out, key, what, "an array");
}

Status json_string(yyjson_val *object, const char *key, const char *what, const char **out) {
  yyjson_val *v;
  TRY(json_member(object, key, what, &v));
  *out = json_as_string(v);
  return *out ? OK : fail_type(v, key, what, "a string without NUL");
}

Status json_int64(yyjson_val *object, const char *key, const char *what, int64_t *out) {
  yyjson_val *v;
  TRY(json_member(object, key, what, &v));
  return json_as_int64(v, out) ? OK : fail_type(v, key, what, "an integer of 64 bits");
}

Status json_bool(yyjson_val *object, const char *key, const char *what, bool *out) {
  yyjson_val *v;
  TRY(json_member(object, key, what, &v));
  *out = yyjson_get_bool(v);
  return yyjson_is_bool(v) ? OK : fail_type(v, key, what, "true or false");
}

bool json_as_int64(yyjson_val *v, int64_t *out) {
  if (yyjson_is_uint(v)) {
    uint64_t u = yyjson_get_uint(v);
    *out = (int64_t)u;
    return u <= INT64_MAX;
  }
  *out = yyjson_get_sint(v);
  return yyjson_is_sint(v);
}

const char *json_as_string(yyjson_val *v) {
  const char *s = yyjson_get_str(v);
  return s && strlen(s) == yyjson_get_len(v) ? s : NULL;
}

static int by_text(const void *a, const void *b) {
  return strcmp(*(const char *const *)a, *(const char *const *)b);
}

Status json_check_keys(yyjson_val *object, const char *what) {
  size_t n = yyjson_obj_size(object), count = 0, i, max;
  if (n == 0) return OK;
  const char **keys;
  TRY_NEW(keys, malloc(n * sizeof *keys));
  Status s = OK;
  yyjson_val *key, *value;
  yyjson_obj_foreach(object, i, max, key, value) {
    keys[count] = json_as_string(key);
    if (!keys[count++]) {
      s = fail(ERR_FILE, "%s: a key contains the character NUL", what);
      goto done;
    }
  }
  qsort(keys, count, sizeof *keys, by_text);
  for (i = 1; i < count; i++) {
    if (!strcmp(keys[i - 1], keys[i])) {
      s = fail(ERR_FILE, "%s: the key '%s' occurs twice", what, keys[i]);
      goto done;
    }
  }
done:
  free(keys);
  return s;
}
