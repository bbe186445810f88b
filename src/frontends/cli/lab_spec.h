/* Text to links and back: "1gbit,delay=1ms,loss=0.1%,name=eth1". Pure. */
#ifndef CLI_LAB_SPEC_H
#define CLI_LAB_SPEC_H

#include "frontends/cli/lab.h"

/* All return POLYPATH_ERROR_ARGUMENT with the error text set if the text is not what it should be. */

/* "4gbit", "2.5gbit", "100mbit", "none" (0). */
polypath_result_t lab_parse_rate(const char *text, uint64_t *bits);
/* "1ms", "250us", "0". */
polypath_result_t lab_parse_delay(const char *text, uint64_t *ns);
/* "0.1%", "100%", "0"; in parts per million. */
polypath_result_t lab_parse_percent(const char *text, uint32_t *ppm);
/* Letters, digits and '-', so that it can be part of file and namespace names. */
polypath_result_t lab_check_name(const char *name);

/* A whole SPEC, put behind the lab's other links. */
polypath_result_t lab_parse_link(const char *spec, struct lab *lab);

/* What must hold of the combination of a link's values. */
polypath_result_t lab_check_link(const struct lab_link *link);

/* "4gbit", "none"; "1ms"; "0.1%". `text` has room for 32. */
const char *lab_format_rate(char *text, uint64_t bits);
const char *lab_format_delay(char *text, uint64_t ns);
const char *lab_format_percent(char *text, uint32_t ppm);

#endif
