// Writes a sentence piece by piece, such as the reason for refusing a setting.
#ifndef OMNILEARN_SENTENCE_H
#define OMNILEARN_SENTENCE_H

#include <stdint.h>

// Write at `end`, and return the new end. Neither checks for room nor writes a final zero.
char *append_text(char *end, const char *text);
char *append_integer(char *end, int64_t value);

#endif
