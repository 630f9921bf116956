/* mutate_json.h -- changes to a JSON document that bytes choose: the document stays JSON, and
 * much of it stays what a reader expects, so that what comes behind the reader is reached.
 *
 * The same bytes make the same changes. */
#ifndef TESS_TESTS_MUTATE_JSON_H
#define TESS_TESTS_MUTATE_JSON_H

#include <stdbool.h>
#include <stdint.h>
#include <yyjson.h>

typedef struct {
  const uint8_t *data;
  size_t size, at;
} Choices;

/* Below n; 0 when the bytes are used up. */
uint32_t choose(Choices *c, uint32_t n);
bool choices_left(const Choices *c);

/* One change somewhere in the document. */
void mutate_json(yyjson_mut_doc *doc, Choices *c);

#endif
