/* user_inputs.h -- what the user inputs of a program are called by those who give them. */
#ifndef TESS_GRAPH_USER_INPUTS_H
#define TESS_GRAPH_USER_INPUTS_H

#include "graph/graph.h"

typedef struct {
  const Val *val;       /* val->name is its name in the graph */
  const char *argument; /* forward's name for it; NULL if the file does not tell */
} UserInput;

/* In order; as many as exported_user_inputs() tells. */
Status user_inputs(const Exported *e, Arena *arena, UserInput **out);
/* By either name; NULL if there is none. */
const UserInput *user_input_find(const UserInput *inputs, int n, const char *name);

/* Adds what the program takes to an error: 'x' f32[s0,3], ... */
Status user_inputs_hint(Status s, const Exported *e);

#endif
