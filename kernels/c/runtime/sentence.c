#include <string.h>

#include "sentence.h"

char *append_text(char *end, const char *text) {
    size_t length = strlen(text);
    memcpy(end, text, length);
    return end + length;
}

char *append_integer(char *end, int64_t value) {
    char digits[20];
    size_t count = 0;
    uint64_t rest = value < 0 ? -(uint64_t)value : (uint64_t)value;
    do {
        digits[count++] = (char)('0' + rest % 10);
        rest /= 10;
    } while (rest > 0);
    if (value < 0) *end++ = '-';
    while (count > 0) *end++ = digits[--count];
    return end;
}
