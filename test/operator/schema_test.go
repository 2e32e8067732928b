package operator

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// A schema is a JSON schema, as far as ours go: a word that is not here is an error.
type schema struct {
	Schema      string             `json:"$schema"`
	Ref         string             `json:"$ref"`
	Title       string             `json:"title"`
	Description string             `json:"description"`
	Type        string             `json:"type"`
	Format      string             `json:"format"`
	Enum        []any              `json:"enum"`
	Minimum     *float64           `json:"minimum"`
	Required    []string           `json:"required"`
	Properties  map[string]*schema `json:"properties"`
	Additional  json.RawMessage    `json:"additionalProperties"`
	Items       *schema            `json:"items"`
	Defs        map[string]*schema `json:"$defs"`
}

func readSchema(t *testing.T, name string) *schema {
	t.Helper()
	f, err := os.Open(filepath.Join(projectDir, "docs", "schema", name))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	s := &schema{}
	d := json.NewDecoder(f)
	d.DisallowUnknownFields()
	if err := d.Decode(s); err != nil {
		t.Fatal(err)
	}
	return s
}

// check returns what is wrong with a value.
func (root *schema) check(s *schema, where string, v any) []string {
	if s.Ref != "" {
		s = root.Defs[strings.TrimPrefix(s.Ref, "#/$defs/")]
		if s == nil {
			return []string{where + ": the schema refers to nothing"}
		}
	}
	var wrong []string
	complain := func(format string, args ...any) {
		wrong = append(wrong, where+": "+fmt.Sprintf(format, args...))
	}
	if len(s.Enum) > 0 && !slices.Contains(s.Enum, v) {
		complain("%v is none of %v", v, s.Enum)
	}
	switch v := v.(type) {
	case map[string]any:
		if s.Type != "object" {
			complain("is an object")
		}
		wrong = append(wrong, root.checkObject(s, where, v)...)
	case []any:
		if s.Type != "array" {
			complain("is an array")
			break
		}
		for i, item := range v {
			wrong = append(wrong, root.check(s.Items, fmt.Sprintf("%s[%d]", where, i), item)...)
		}
	case string:
		_, err := time.Parse(time.RFC3339Nano, v)
		if s.Type != "string" || s.Format == "date-time" && err != nil {
			complain("is the string %q", v)
		}
	case float64:
		if s.Type != "number" && (s.Type != "integer" || v != float64(int64(v))) || s.Minimum != nil && v < *s.Minimum {
			complain("is the number %v", v)
		}
	case bool:
		if s.Type != "boolean" {
			complain("is %v", v)
		}
	default:
		complain("is %v", v)
	}
	return wrong
}

func (root *schema) checkObject(s *schema, where string, v map[string]any) []string {
	var wrong []string
	for _, name := range s.Required {
		if _, ok := v[name]; !ok {
			wrong = append(wrong, fmt.Sprintf("%s has no %s", where, name))
		}
	}
	for name, value := range v {
		rule := s.Properties[name]
		if rule == nil && string(s.Additional) != "false" {
			rule = &schema{}
			_ = json.Unmarshal(s.Additional, rule)
		}
		if rule == nil {
			wrong = append(wrong, fmt.Sprintf("%s has %s, which the schema does not know", where, name))
			continue
		}
		wrong = append(wrong, root.check(rule, where+"."+name, value)...)
	}
	return wrong
}
