/* group_list.h -- which ranks the groups of a program are made of, as given from outside.
 *
 * A list is only words and numbers: it is made before any rank is there, and each rank
 * defines it in its own table (groups.h).
 */
#ifndef TESS_COMM_GROUP_LIST_H
#define TESS_COMM_GROUP_LIST_H

#include "base/json.h"
#include "comm/groups.h"

typedef struct {
  const char *name;
  const int *rank;
  int n; /* 0: all ranks */
} GroupRanks;

typedef struct {
  Arena arena;
  GroupRanks *v;
  int n, cap;
} GroupList;

void group_list_free(GroupList *l);

/* "tp=0,1,2,3" or "tp=all".  Several lists of one name: a rank is in one of them. */
Status group_list_add_text(GroupList *l, const char *text);
/* The key "groups" of a plan file; a plan without it adds nothing. */
Status group_list_read(GroupList *l, const char *path);

/* Do the lists fit n ranks?  (Whoever launches asks before it does.) */
Status group_list_check(const GroupList *l, int n);
Status group_list_define(const GroupList *l, Groups *g);

#endif
