/* trace_comm.h -- the collectives of a run in a trace (trace.h): on tracks beside the program's, from their start
 * to their end, with arrows between ranks.
 *
 * I1  Slices of one track lie beside each other: what is under way at the same time is on several tracks.
 * I2  An arrow goes from the rank that came last to a collective to each of the others, for which it was the one to
 *     wait for, at the moment when it came.
 */
#ifndef TESS_REPORT_TRACE_COMM_H
#define TESS_REPORT_TRACE_COMM_H

#include "base/textbuf.h"
#include "comm/comm.h"

/* Adds the slices of a rank's collectives, in the order of their beginnings, to `events`, and to `calls` what the
 * arrows are made of: a line of text each.  zero: see trace_events(). */
Status trace_comm_events(TextBuf *events, TextBuf *calls, const CommPast *past, int n, int rank, double zero);
/* The arrows, of the lines of all ranks. */
Status trace_comm_arrows(TextBuf *events, const char *calls);

#endif
