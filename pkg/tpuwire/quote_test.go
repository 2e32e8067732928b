package tpuwire

import (
	"strconv"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

func TestQuote(t *testing.T) {
	for _, tc := range []struct {
		text  string
		limit int
		want  string
	}{
		{"", 8, `""`},
		{"", 0, `""`},
		{"", -1, `""`},
		{"plain", 5, `"plain"`},
		{"plain", 4, `"plai"... (4 of 5 bytes)`},
		{"plain", 0, `""... (0 of 5 bytes)`},
		{"plain", -1, `""... (0 of 5 bytes)`},
		{`say "no"`, 80, `"say \"no\""`},
		{"a\nb\x00\x1b[2J\x7f", 80, `"a\nb\x00\x1b[2J\x7f"`},
		{"\u009b31m \u202e \u2028", 80, `"\u009b31m \u202e \u2028"`},
		{"\xff\xfe", 80, `"\xff\xfe"`},
		{"größe", 80, `"größe"`},
		{"größe", 3, `"gr"... (2 of 7 bytes)`},
		{"größe", 4, `"grö"... (4 of 7 bytes)`},
		{"\U0001F600!", 4, "\"\U0001F600\"... (4 of 5 bytes)"},
		{"\U0001F600!", 3, `""... (0 of 5 bytes)`},
		{"\x80\x80\x80\x80\x80\x80", 5, `"\x80\x80\x80\x80\x80"... (5 of 6 bytes)`},
	} {
		if got := Quote(tc.text, tc.limit); got != tc.want {
			t.Errorf("Quote(%q, %d) = %s, want %s", tc.text, tc.limit, got, tc.want)
		}
	}
}

func FuzzQuote(f *testing.F) {
	f.Add("", 0)
	f.Add("größe\x1b[2J", 3)
	f.Add("\xff\x80\x80\x80\u202e", 4)
	f.Fuzz(func(t *testing.T, text string, limit int) {
		got := Quote(text, limit)
		if !utf8.ValidString(got) {
			t.Fatalf("%q is not UTF-8", got)
		}
		if i := strings.IndexFunc(got, func(r rune) bool { return !unicode.IsPrint(r) }); i >= 0 {
			t.Fatalf("%q has an unprintable rune at %d", got, i)
		}
		quoted, err := strconv.QuotedPrefix(got)
		if err != nil {
			t.Fatalf("%q does not start with a quoted text: %v", got, err)
		}
		shown, err := strconv.Unquote(quoted)
		if err != nil || !strings.HasPrefix(text, shown) {
			t.Fatalf("%q shows %q, which is not how %q starts (%v)", got, shown, text, err)
		}
		wantCut(t, text, shown, limit)
		if cut := len(got) > len(quoted); cut != (len(shown) < len(text)) {
			t.Fatalf("%q of %q: marked as cut: %t", got, text, cut)
		}
	})
}

// wantCut fails unless shown is as much of text as limit allows.
func wantCut(t *testing.T, text, shown string, limit int) {
	t.Helper()
	limit = max(limit, 0)
	if len(text) <= limit {
		if shown != text {
			t.Fatalf("%q was cut to %q although %d bytes are allowed", text, shown, limit)
		}
		return
	}
	if len(shown) > limit || len(shown) <= limit-utf8.UTFMax {
		t.Fatalf("%d bytes of %q are shown, want %d or a little less", len(shown), text, limit)
	}
	if utf8.ValidString(text) && !utf8.ValidString(shown) {
		t.Fatalf("%q cuts a rune", shown)
	}
}
