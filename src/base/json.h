/* json.h -- yyjson with errors that say where.
 *
 * I1  A parsed document nests at most JSON_MAX_DEPTH deep, so readers may recurse.
 * I2  Whoever parses owns the document: yyjson_doc_free().
 */
#ifndef TESS_BASE_JSON_H
#define TESS_BASE_JSON_H

#include <yyjson.h>

#include "base/status.h"

enum { JSON_MAX_DEPTH = 200 };

typedef enum {
  JSON_NAN = 1, /* NaN and Infinity are numbers, as Python writes them */
} JsonFlags;

/* `what` names the source in errors: a path, or "model.pt2: models/model.json". */
Status json_parse(const char *what, const void *text, size_t size, unsigned flags, yyjson_doc **out);

/* A member of an object that must be there and of that type.  The errors name `what`. */
Status json_member(yyjson_val *object, const char *key, const char *what, yyjson_val **out);
Status json_object(yyjson_val *object, const char *key, const char *what, yyjson_val **out);
Status json_array(yyjson_val *object, const char *key, const char *what, yyjson_val **out);
Status json_string(yyjson_val *object, const char *key, const char *what,
                   const char **out); /* without NUL inside */
Status json_int64(yyjson_val *object, const char *key, const char *what, int64_t *out);
Status json_bool(yyjson_val *object, const char *key, const char *what, bool *out);

/* Integers that fit; false for anything else. */
bool json_as_int64(yyjson_val *v, int64_t *out);
/* A string without NUL inside; NULL for anything else. */
const char *json_as_string(yyjson_val *v);

/* Fails if a key occurs twice, or contains NUL. */
Status json_check_keys(yyjson_val *object, const char *what);

#endif
