package tpuwire

import (
	"fmt"
	"strconv"
	"unicode/utf8"
)

// Quote makes text of a guest safe to show to a person: in double quotes, with
// everything that is not printable escaped as in Go source, so that no control byte,
// terminal escape or bidirectional mark is left. At most limit bytes of s are shown,
// cut between two runes; text that was cut is followed by three dots and how much
// of it is shown. strconv.Unquote of the quoted part gives what is shown back.
func Quote(s string, limit int) string {
	limit = max(limit, 0)
	if len(s) <= limit {
		return strconv.Quote(s)
	}
	end := runeBoundary(s, limit)
	return fmt.Sprintf("%s... (%d of %d bytes)", strconv.Quote(s[:end]), end, len(s))
}

// runeBoundary returns the largest index up to limit that does not cut a rune of s
// in two. Bytes that form no rune may be cut anywhere. limit is in [0, len(s)).
func runeBoundary(s string, limit int) int {
	for start := limit - 1; start >= 0 && start > limit-utf8.UTFMax; start-- {
		if !utf8.RuneStart(s[start]) {
			continue
		}
		if _, size := utf8.DecodeRuneInString(s[start:]); start+size > limit {
			return start
		}
		break
	}
	return limit
}
